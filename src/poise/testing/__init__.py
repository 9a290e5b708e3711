"""Conformance checks for custom objectives, rules, post-hoc steps, backbones and memories.

Each check is a function that takes the object to test and raises AssertionError with the violated rule, so that each
can be a separate test::

    @pytest.mark.parametrize("check", poise.testing.BACKBONE_CHECKS)
    def test_my_backbone(my_encoder, check):
        check(my_encoder)

`parametrize_checks` does the same for several objects; `check_objective`, `check_rule`, `check_stream_rule`,
`check_posthoc`, `check_backbone` and `check_memory` run all checks and report all failures. They use only the public
protocols.
"""

from __future__ import annotations

from poise.testing.backbones import BACKBONE_CHECKS, check_backbone
from poise.testing.conformance import parametrize_checks
from poise.testing.memories import MEMORY_CHECKS, check_memory
from poise.testing.objectives import OBJECTIVE_CHECKS, check_objective, example_outputs
from poise.testing.rule_checks import POSTHOC_CHECKS, RULE_CHECKS, check_posthoc, check_rule, example_images
from poise.testing.stream_rules import STREAM_RULE_CHECKS, check_stream_rule

__all__ = [
    "BACKBONE_CHECKS",
    "MEMORY_CHECKS",
    "OBJECTIVE_CHECKS",
    "POSTHOC_CHECKS",
    "RULE_CHECKS",
    "STREAM_RULE_CHECKS",
    "check_backbone",
    "check_memory",
    "check_objective",
    "check_posthoc",
    "check_rule",
    "check_stream_rule",
    "example_images",
    "example_outputs",
    "parametrize_checks",
]
