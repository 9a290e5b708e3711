"""Learning rates relative to the initial context, as the absolute numbers that a run has.

A run may have several initial contexts: one for each template of its datasets or of its framework. CoCoOp's is the
context before an image's offset is added, and for MaPLe the context counts for all parts; so there is one number for
all images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from poise import backbones
from poise.encoding.class_texts import context_rms
from poise.errors import InvalidOptionError
from poise.evaluate.config import RunConfig
from poise.inits.kinds import init_file
from poise.methods import Method
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import load
from poise.tuning.ensemble import TEMPLATES
from poise.tuning.frameworks import frameworks


def absolute_rates(
    config: RunConfig, methods: Sequence[Method], templates: Iterable[str]
) -> dict[str, dict[str, float]]:
    """Return the absolute learning rates by template, for each method that has a relative one.

    Args:
        config: the run.
        methods: its methods.
        templates: those of its datasets.
    """
    relative = [method for method in methods if method.relative_lr and method.tunes]
    sizes = _sizes(config, templates) if relative else {}
    return {method.name: {template: method.absolute_lr(rms) for template, rms in sizes.items()} for method in relative}


def _sizes(config: RunConfig, templates: Iterable[str]) -> dict[str, float]:
    """The RMS of each initial context, by its template."""
    file = init_file(config.init)
    if file is not None:
        stored = load(file)
        return {stored.facts.template: context_rms(stored.tensors["context"])}
    if config.init != "template":
        raise InvalidOptionError(
            f"The learning rate is relative to the init '{config.init}', which would only be fitted in the run.",
            hint=f"Fit it before, with `poise fit {config.init} --out FILE`, and give the file as init.",
        )
    if frameworks.get(config.framework).own_templates:
        templates = TEMPLATES
    elif config.template:
        templates = (config.template,)
    dtype: torch.dtype = getattr(torch, config.dtype)
    # The token vectors are looked up, not computed, so a CPU gives those of the run's device.
    wide = "float64" if dtype is torch.float64 else "float32"
    encoder = backbones.load_model(config.model, device="cpu", dtype=wide, logit_scale=config.logit_scale)
    contexts = {each: init_prompt(encoder, tokenise(encoder, ["thing"], each)).context for each in sorted(templates)}
    return {template: context_rms(context.to(dtype)) for template, context in contexts.items()}
