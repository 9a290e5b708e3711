"""The frameworks, one row each: how images relate to each other while they are tuned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from poise.encoding.coupled import Coupled
from poise.errors import InvalidOptionError, UnknownNameError
from poise.inits.kinds import Init, read_init
from poise.methods import Method, Term
from poise.objectives.alignment import WEIGHT
from poise.prompts import tokenise
from poise.prompts.conditional import Conditional
from poise.registry import Registry
from poise.tuning.deep import DeepTuner
from poise.tuning.ensemble import TEMPLATES, Ensemble
from poise.tuning.episodic import ConditionalTuner, Tuner
from poise.tuning.protocol import AnyTuner
from poise.tuning.stream import StreamTuner
from poise.tuning.temperature import Tempered
from poise.types import ClassTokens, DualEncoder


@dataclass(frozen=True, kw_only=True)
class FrameworkOptions:
    """What every framework takes."""

    temperature: float = 1.0  # that answers' logits are divided by


@dataclass(frozen=True, kw_only=True)
class EpisodicOptions(FrameworkOptions):
    """Of "tpt"."""

    statistics: str = ""  # file of token statistics: MaPLe is then tuned with PromptAlign's term
    feature_norm: float = 1.0  # of the features that CoCoOp's network reads


@dataclass(frozen=True, kw_only=True)
class DynaPromptOptions(FrameworkOptions):
    """Of "dynaprompt"."""

    size: int = 10  # prompts that the memory holds
    variant: str = "described"  # or "as-published"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a tuner is made of."""

    encoder: DualEncoder
    methods: Sequence[Method]
    init: Init
    on_long_label: str = "error"


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework. ``ordered``: answers depend on the images before, so that a stream can't be split."""

    name: str
    description: str
    build: Callable[[Setup, Any], AnyTuner]  # the second is an object of ``options``
    inits: tuple[str, ...]  # kinds that it can start from
    options: type[FrameworkOptions] = FrameworkOptions
    ordered: bool = False

    def parse(self, given: Mapping[str, Any]) -> FrameworkOptions:
        """The options with these names, or an error that names the nearest."""
        known = [option.name for option in fields(self.options)]
        for name in given:
            if name not in known:
                raise UnknownNameError.of(f"option of the framework '{self.name}'", name, known)
        return self.options(**given)


def _episodic(setup: Setup, options: EpisodicOptions) -> AnyTuner:
    encoder, methods, classes, init = setup.encoder, setup.methods, setup.init.classes, setup.init.parameters
    if options.statistics and not isinstance(init, Coupled):
        raise InvalidOptionError(
            f"statistics={options.statistics!r} was given, and the init is '{setup.init.kind}'.",
            hint="PromptAlign tunes MaPLe's prompts: give a MaPLe prompt as init.",
        )
    if options.feature_norm != 1.0 and not isinstance(init, Conditional):
        raise InvalidOptionError(
            f"feature_norm={options.feature_norm} was given, and the init is '{setup.init.kind}'.",
            hint="Only CoCoOp's network reads features: give a CoCoOp prompt as init.",
        )
    if isinstance(init, Coupled):
        return DeepTuner(encoder, classes, [_aligned(method, options.statistics) for method in methods], init)
    if isinstance(init, Conditional):
        return ConditionalTuner(encoder, classes, methods, replace(init, feature_norm=options.feature_norm))
    return Tuner(encoder, classes, methods, init)


def _aligned(method: Method, statistics: str) -> Method:
    """The method with PromptAlign's term; the record of a run tells it by the framework's option."""
    if not statistics or not method.tunes:
        return method
    return replace(method, terms=(*method.terms, Term("alignment", WEIGHT, options={"statistics": statistics})))


def _online(setup: Setup, options: DynaPromptOptions) -> AnyTuner:
    init = setup.init.parameters
    assert not isinstance(init, Coupled | Conditional)
    return StreamTuner(
        setup.encoder, setup.init.classes, setup.methods, init, size=options.size, variant=options.variant
    )


def _ensemble(setup: Setup, options: FrameworkOptions) -> AnyTuner:
    encoder, labels = setup.encoder, setup.init.classes.labels
    placed = [
        tokenise(encoder, labels, template, on_long_label=setup.on_long_label, repeats=True) for template in TEMPLATES
    ]
    return Ensemble([Tuner(encoder, classes, setup.methods) for classes in placed])


frameworks: Registry[Framework] = Registry("framework")
for _framework in (
    Framework(name="tpt", description="each image for itself", build=_episodic, options=EpisodicOptions,
              inits=("template", "fpp", "coop", "cocoop", "maple")),
    Framework(name="dynaprompt", description="an online memory of prompts along a stream", build=_online,
              options=DynaPromptOptions, inits=("template", "fpp", "coop"), ordered=True),
    Framework(name="ensemble", description="four templates, tuned apart, logits averaged", build=_ensemble,
              inits=("template",)),
):  # fmt: skip
    frameworks.add(_framework.name)(_framework)


def make_tuner(
    encoder: DualEncoder,
    classes: ClassTokens,
    methods: Sequence[Method],
    *,
    framework: str = "tpt",
    init: str = "template",
    options: Mapping[str, Any] | None = None,
    on_long_label: str = "error",
) -> AnyTuner:
    """A tuner over the labels of ``classes``.

    Args:
        encoder: the model.
        classes: the labels under the template that is the init where ``init`` doesn't bring its own.
        methods: what to tune by.
        framework: one of `frameworks`: "tpt" (each image for itself), "dynaprompt" (an online memory along a stream),
            or "ensemble" (four templates, tuned apart, logits averaged).
        init: "template" (its words), "fpp" (fitted here, without data), or the file of a fitted prompt, optionally
            with its kind in front ("coop:prompt.safetensors").
        options: the framework's own, by name, such as ``{"size": 5}`` for "dynaprompt".
        on_long_label: what to do with labels that are too long under the init's own template, as in `tokenise`.
    """
    row = frameworks.get(framework)
    parsed = row.parse(options or {})
    found = read_init(init, encoder, classes, on_long_label=on_long_label)
    if found.kind not in row.inits:
        raise InvalidOptionError(
            f"'{framework}' can't start from '{found.kind}'.", hint=f"It starts from: {', '.join(row.inits)}."
        )
    setup = Setup(encoder=encoder, methods=methods, init=found, on_long_label=on_long_label)
    tuner = row.build(setup, parsed)
    return tuner if parsed.temperature == 1.0 else Tempered(tuner, parsed.temperature)
