"""Conformance checks for what others add: an objective, a backbone or a memory that passes them works in all of poise.

Each check is a function that takes the thing to judge and raises AssertionError with the rule it breaks, so that each
can be a test with an id of its own:

    @pytest.mark.parametrize("check", poise.testing.BACKBONE_CHECKS)
    def test_my_backbone(my_encoder, check):
        check(my_encoder)

`parametrize_checks` does the same for several things at once; `check_objective`, `check_backbone` and `check_memory`
run all checks and report all that fail. They use nothing but the public protocols.
"""

from __future__ import annotations

from poise.testing.backbones import BACKBONE_CHECKS, check_backbone
from poise.testing.checks import parametrize_checks
from poise.testing.memories import MEMORY_CHECKS, check_memory
from poise.testing.objectives import OBJECTIVE_CHECKS, check_objective, example_outputs

__all__ = [
    "BACKBONE_CHECKS",
    "MEMORY_CHECKS",
    "OBJECTIVE_CHECKS",
    "check_backbone",
    "check_memory",
    "check_objective",
    "example_outputs",
    "parametrize_checks",
]
