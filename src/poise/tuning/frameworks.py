"""From a run's choices to a tuner: the framework (how images relate) and the start (where tuning begins)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from poise.encoding.coupled import Coupled
from poise.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from poise.inits import fpp
from poise.objectives.alignment import Alignment
from poise.prompts.conditional import Conditional
from poise.prompts.files import Facts, StoredPrompt, load
from poise.tuning.conditional import ConditionalTuner
from poise.tuning.deep import DeepTuner
from poise.tuning.ensemble import TEMPLATES, AnyTuner, Ensemble, Tempered
from poise.tuning.step import Recipe
from poise.tuning.stream import StreamTuner
from poise.tuning.tuner import Tuner
from poise.types import ClassTokens, DualEncoder, Prompt

FRAMEWORKS = ("tpt", "dynaprompt", "ensemble")
KINDS = ("coop", "cocoop", "maple", "fpp")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What only some frameworks have."""

    size: int = 10  # of DynaPrompt's memory
    variant: str = "described"  # of DynaPrompt
    statistics: str = ""  # file of token statistics: MaPLe is then tuned with PromptAlign's term
    feature_norm: float = 1.0  # of the features that CoCoOp's network reads
    temperature: float = 1.0  # that answers' logits are divided by


def make_tuner(
    encoder: DualEncoder,
    classes: ClassTokens,
    methods: Sequence[Recipe],
    *,
    framework: str = "tpt",
    init: str = "template",
    options: Options | None = None,
    on_long_label: str = "error",
) -> AnyTuner:
    """A tuner over the labels of ``classes``.

    Args:
        encoder: the model.
        classes: the labels under the template that is the start where ``init`` doesn't bring its own.
        methods: what to tune by.
        framework: "tpt" (each image for itself), "dynaprompt" (an online memory along a stream), or "ensemble"
            (four templates, tuned apart, logits averaged).
        init: "template" (its words), "fpp" or "fpp-shift" (fitted here, without data), or the file of a fitted prompt,
            optionally with its kind in front ("coop:prompt.safetensors").
        options: what only some frameworks have.
        on_long_label: "error" or "truncate", for labels that are too long under a fitted prompt's own template.
    """
    options = options or Options()
    if framework not in FRAMEWORKS:
        raise UnknownNameError.of("framework", framework, FRAMEWORKS)
    stored = read_init(init, encoder, classes)
    tuner = _make(encoder, classes, methods, framework, stored, options, on_long_label)
    return tuner if options.temperature == 1.0 else Tempered(tuner, options.temperature)


def read_init(init: str, encoder: DualEncoder, classes: ClassTokens) -> StoredPrompt | None:
    """The prompt that ``init`` names; None for the template's own words."""
    if init == "template":
        return None
    if init in fpp.PUBLISHED:
        return fpp.fit(encoder, classes.labels, classes.template, recipe=fpp.PUBLISHED[init])
    kind, _, rest = init.partition(":")
    path = rest if kind in KINDS and rest else init
    stored = load(path)
    if path != init and stored.facts.kind != kind:
        raise InvalidCheckpointError(
            f"'{path}' holds a prompt of kind '{stored.facts.kind}', but '{kind}' was asked for.",
            hint=f"Write '{stored.facts.kind}:{path}', or give the right file.",
        )
    return stored


def place(
    stored: StoredPrompt, encoder: DualEncoder, classes: ClassTokens, on_long_label: str = "error"
) -> tuple[ClassTokens, Prompt]:
    """The same labels under a fitted prompt's own template, and that prompt on the encoder's device."""
    own = stored.classes(encoder, classes.labels, on_long_label=on_long_label, repeats=True)
    dtype = torch.promote_types(encoder.dtype, torch.float32)
    return own, stored.prompt().map(lambda part: part.to(encoder.device, dtype))


def _make(
    encoder: DualEncoder,
    classes: ClassTokens,
    methods: Sequence[Recipe],
    framework: str,
    stored: StoredPrompt | None,
    options: Options,
    on_long_label: str,
) -> AnyTuner:
    if framework == "ensemble":
        return _ensemble(encoder, classes, methods, stored, options)
    start = None
    if stored is not None:
        kind = stored.facts.kind
        classes, start = place(stored, encoder, classes, on_long_label)
        if kind in ("maple", "cocoop") and framework != "tpt":
            raise InvalidOptionError(
                f"'{framework}' can't start from '{kind}'.", hint="It needs one context: coop or fpp."
            )
        if kind == "maple":
            alignment = read_statistics(options.statistics) if options.statistics else None
            return DeepTuner(encoder, classes, methods, Coupled.of(stored, encoder), alignment=alignment)
        if kind == "cocoop":
            width, like = int(stored.tensors["weight1"].shape[1]), start.context
            made = Conditional.of(stored, width, like, feature_norm=options.feature_norm)
            return ConditionalTuner(encoder, classes, methods, made)
    if framework == "dynaprompt":
        return StreamTuner(encoder, classes, methods, start, size=options.size, variant=options.variant)
    return Tuner(encoder, classes, methods, start)


def _ensemble(
    encoder: DualEncoder,
    classes: ClassTokens,
    methods: Sequence[Recipe],
    stored: StoredPrompt | None,
    options: Options,
) -> Ensemble:
    if stored is not None:
        raise InvalidOptionError(
            f"An ensemble of templates can't start from '{stored.facts.kind}'.", hint="Use init = 'template'."
        )
    members = []
    for template in TEMPLATES:
        own = Facts(kind="template", model=encoder.name, template=template).place(encoder, classes.labels, repeats=True)
        members.append(Tuner(encoder, own, methods))
    return Ensemble(members)


def read_statistics(path: str | Path) -> Alignment:
    """Token statistics that `poise fit stats` wrote."""
    try:
        tensors = load_file(path)
        return Alignment(tensors["mean"], tensors["variance"])
    except (SafetensorError, OSError, KeyError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' holds no token statistics: {problem}.", hint="Compute them with `poise fit stats`."
        ) from None
