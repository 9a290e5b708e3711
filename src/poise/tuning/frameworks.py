"""The frameworks, one row each: how images relate to each other while they are tuned."""

from __future__ import annotations

import logging
import time
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
from poise.registry import Registry, check_options
from poise.tuning.deep import DeepTuner
from poise.tuning.ensemble import TEMPLATES, Ensemble
from poise.tuning.episodic import ConditionalTuner, Tuner
from poise.tuning.protocol import AnyTuner
from poise.tuning.stream import StreamTuner
from poise.tuning.temperature import Tempered
from poise.types import ClassTokens, DualEncoder

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FrameworkOptions:
    """The options of every framework."""

    temperature: float = 1.0  # the answers' logits are divided by it

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise InvalidOptionError(f"The temperature is {self.temperature}.", hint="It must be above 0.")


@dataclass(frozen=True, kw_only=True)
class EpisodicOptions(FrameworkOptions):
    """The options of "tpt"."""

    statistics: str = ""  # file of token statistics: MaPLe is then tuned with PromptAlign's term
    feature_norm: float = 1.0  # norm of the features that CoCoOp's network reads


@dataclass(frozen=True, kw_only=True)
class DynaPromptOptions(FrameworkOptions):
    """The options of "dynaprompt"."""

    size: int = 10  # number of prompts in the memory
    variant: str = "described"  # or "as-published"


@dataclass(frozen=True, kw_only=True)
class Framework:
    """One framework. ``ordered``: answers depend on the images before, so that a stream can't be split."""

    name: str
    description: str
    build: Callable[[DualEncoder, Sequence[Method], Init, Any, str], AnyTuner]  # the last: options and on_long_label
    inits: tuple[str, ...]  # the kinds that it can start from
    options: type[FrameworkOptions] = FrameworkOptions
    ordered: bool = False
    own_templates: bool = False  # so that no other can be given
    rules: bool = False  # whether methods with a rule can be run in it

    def parse(self, values: Mapping[str, Any]) -> FrameworkOptions:
        """Return the options with these names, or raise an error that names the nearest."""
        known = [option.name for option in fields(self.options)]
        for name in values:
            if name not in known:
                raise UnknownNameError.of("option", name, known, owner=f"the framework '{self.name}'")
        check_options(self.options, values, f"the framework '{self.name}'")
        return self.options(**values)

    def check(self, methods: Sequence[Method]) -> None:
        """Refuse methods that it can't run."""
        rules = [] if self.rules else [method.name for method in methods if method.rule]
        if rules:
            accepted = [name for name in frameworks if frameworks.get(name).rules]
            raise InvalidOptionError(
                f"The framework '{self.name}' tunes prompts, and {', '.join(rules)} answers without.",
                hint=f"Run methods with a rule in the framework {', '.join(accepted)}.",
            )


def _episodic(
    encoder: DualEncoder, methods: Sequence[Method], init: Init, options: EpisodicOptions, _: str
) -> AnyTuner:
    classes, parameters = init.classes, init.parameters
    if options.statistics and not isinstance(parameters, Coupled):
        raise InvalidOptionError(
            f"statistics={options.statistics!r} was given, and the init is '{init.kind}'.",
            hint="PromptAlign tunes MaPLe's prompts: give a MaPLe prompt as init.",
        )
    if options.feature_norm != 1.0 and not isinstance(parameters, Conditional):
        raise InvalidOptionError(
            f"feature_norm={options.feature_norm} was given, and the init is '{init.kind}'.",
            hint="Only CoCoOp's network reads features: give a CoCoOp prompt as init.",
        )
    if isinstance(parameters, Coupled):
        return DeepTuner(encoder, classes, [_aligned(method, options.statistics) for method in methods], parameters)
    if isinstance(parameters, Conditional):
        return ConditionalTuner(encoder, classes, methods, replace(parameters, feature_norm=options.feature_norm))
    return Tuner(encoder, classes, methods, parameters)


def _aligned(method: Method, statistics: str) -> Method:
    """The method with PromptAlign's term; in the record of a run, only the framework's option shows it."""
    if not statistics or not method.tunes:
        return method
    return replace(method, terms=(*method.terms, Term("alignment", WEIGHT, options={"statistics": statistics})))


def _online(
    encoder: DualEncoder, methods: Sequence[Method], init: Init, options: DynaPromptOptions, _: str
) -> AnyTuner:
    assert not isinstance(init.parameters, Coupled | Conditional)
    return StreamTuner(encoder, init.classes, methods, init.parameters, size=options.size, variant=options.variant)


def _ensemble(
    encoder: DualEncoder, methods: Sequence[Method], init: Init, options: FrameworkOptions, on_long_label: str
) -> AnyTuner:
    labels = init.classes.labels
    return Ensemble(
        [
            Tuner(encoder, tokenise(encoder, labels, template, on_long_label=on_long_label, repeats=True), methods)
            for template in TEMPLATES
        ]
    )


frameworks: Registry[Framework] = Registry("framework", of=Framework)
for _framework in (
    Framework(
        name="tpt",
        description="episodic: each image is tuned independently",
        build=_episodic,
        options=EpisodicOptions,
        inits=("template", "fpp", "coop", "cocoop", "maple"),
        rules=True,
    ),
    Framework(
        name="dynaprompt",
        description="an online memory of prompts along a stream",
        build=_online,
        options=DynaPromptOptions,
        inits=("template", "fpp", "coop"),
        ordered=True,
    ),
    Framework(
        name="ensemble",
        description="four templates, each tuned independently; logits averaged",
        build=_ensemble,
        inits=("template",),
        own_templates=True,
    ),
):
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
    """Return a tuner over the labels of ``classes``.

    Args:
        encoder: the model.
        classes: the labels under a template, which is also the init unless ``init`` brings another template.
        methods: the methods to tune by.
        framework: one of `frameworks`: "tpt" (each image for itself), "dynaprompt" (an online memory along a stream),
            or "ensemble" (four templates, tuned apart, logits averaged).
        init: "template" (its words), "fpp" (fitted here, without data), or the file of a fitted prompt, optionally
            with its kind in front ("coop:prompt.safetensors").
        options: the framework's options by name, such as ``{"size": 5}`` for "dynaprompt".
        on_long_label: what to do with labels that are too long under the init's template, as in `tokenise`.
    """
    row = frameworks.get(framework)
    parsed = row.parse(options or {})
    row.check(methods)
    start = read_init(init, encoder, classes, on_long_label=on_long_label)
    if start.kind not in row.inits:
        raise InvalidOptionError(
            f"'{framework}' can't start from '{start.kind}'.", hint=f"It starts from: {', '.join(row.inits)}."
        )
    began = time.perf_counter()
    tuner = row.build(encoder, methods, start, parsed, on_long_label)
    names, seconds = ", ".join(method.name for method in methods), time.perf_counter() - began
    log.info(
        "labels: %d encoded in %.2f s; %s, framework %s, init %s, template %r",
        len(start.classes.labels),
        seconds,
        names,
        framework,
        start.kind,
        start.classes.template,
    )
    return tuner if parsed.temperature == 1.0 else Tempered(tuner, parsed.temperature)
