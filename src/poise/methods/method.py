"""A method as data: what is tuned or which rule answers, and which steps follow."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from poise.errors import InvalidOptionError, UnknownNameError
from poise.methods.learning_rate import absolute_lr, check_lr, describe_lr
from poise.objectives import ConfidenceTemperature, Sum, Target, objectives
from poise.posthoc import PostHoc, posthoc
from poise.registry import check_options
from poise.rules import Gives, Rule, rules
from poise.text import file_name
from poise.types import Objective

BAR = " | "  # between a method and the post-hoc steps in a name
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Term:
    """A weighted objective. An objective with a parameter ``target`` receives the method's target."""

    objective: str  #: a registered name
    weight: float = 1.0
    shift_weight: float | None = None  #: the published weight on natural distribution shifts
    options: Mapping[str, Any] = field(default_factory=dict)  #: parameters of the objective

    def __post_init__(self) -> None:
        _check_range("weight", self.weight, 0 <= self.weight < math.inf, "0 or above")
        check_parameters(f"objective '{self.objective}'", self.options, objectives.get(self.objective), ["target"])

    def build(self, target: Target) -> Objective:
        """Return the objective, without its weight."""
        shared = {"target": target} if "target" in parameters(objectives.get(self.objective)) else {}
        return objectives.make(self.objective, {**self.options, **shared})


@dataclass(frozen=True)
class Step:
    """A post-hoc step and its parameters."""

    name: str  #: a registered one
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_parameters(f"post-hoc step '{self.name}'", self.options, posthoc.get(self.name))

    def build(self) -> PostHoc:
        """Return the step."""
        return posthoc.make(self.name, self.options)


@dataclass(frozen=True, kw_only=True)
class About:
    """How lists, tables and figures present a method."""

    description: str = ""
    citation: str = ""
    link: str = ""  #: to the paper
    colour: str = "#8A8A8A"  #: red, green and blue in hexadecimal digits
    dash: str = "-"  #: matplotlib's line style
    order: int = 100  #: lower ones are listed first
    group: str = "own"  #: one of `poise.methods.GROUPS`, where lists and options have it

    def __post_init__(self) -> None:
        if not re.fullmatch("#[0-9A-Fa-f]{6}", self.colour):
            raise InvalidOptionError(f"The colour is '{self.colour}'.", hint="Give one as #0072B2: red, green, blue.")
        if self.dash not in _DASHES:
            raise InvalidOptionError(f"The dash is '{self.dash}'.", hint=f"Give one of: {' '.join(_DASHES)}")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe as data: a sum of weighted objectives with one target, and the settings of AdamW, which minimises it.

    A method without terms tunes nothing: the initial prompt answers, or a ``rule`` does. Post-hoc steps follow both.

    >>> Method(name="mine", terms=(Term("divergence"), Term("dispersion", 5.0)), cats=True).describe()
    'divergence + 5 x dispersion, temperatures 0.1 to 10, selection 0.1, steps 1, lr 0.005, weight decay 0.01'
    """

    name: str
    terms: tuple[Term, ...] = ()  #: empty: nothing is tuned
    rule: str = ""  #: a registered rule that answers instead of a tuned prompt
    rule_options: Mapping[str, Any] = field(default_factory=dict)  #: its parameters that are not fields of a method
    posthoc: tuple[Step, ...] = ()  #: what changes the answer's logits, in order
    selection: float = 0.1  #: fraction of views in the target
    include_plain: bool = True  #: whether the plain view may be one of them
    cats: bool = False  #: confidence-aware temperatures in the target
    t_min: float = 0.1
    t_max: float = 10.0
    detach_temperature: bool = False
    steps: int = 1
    lr: float | str = 5e-3  #: or a multiple of the RMS of the initial context's entries: "0.3rms"
    weight_decay: float = 0.01
    about: About = About()

    def __post_init__(self) -> None:
        _check_range("steps", self.steps, self.steps >= 0 and int(self.steps) == self.steps, "a whole number from 0")
        check_lr(self.lr)
        _check_range("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "0 or above")
        self.target()  # checks the selection and the temperatures
        if self.rule and self.terms:
            raise InvalidOptionError(
                f"The method '{self.name}' has both terms and a rule.", hint="A rule answers without tuning."
            )
        gives = self.make_rule().gives if self.rule else Gives.ALL_VIEWS  # also checks the rule's options
        for step in self.make_posthoc():
            if gives is Gives.PROBABILITIES or (step.reads_views and gives is not Gives.ALL_VIEWS):
                raise InvalidOptionError(
                    f"'{self.name}': the rule '{self.rule}' gives {gives.value}, and this step needs "
                    f"{(Gives.ALL_VIEWS if step.reads_views else Gives.LOGITS).value}.",
                    hint="Use it after a method that tunes the prompt, or after zero-shot.",
                )

    @property
    def file_name(self) -> str:
        """The name as part of a file name.

        >>> Method(name="zero-shot | sals").file_name
        'zero-shot--sals'
        """
        return file_name(self.name.replace(BAR, "--"), unique=False)

    @property
    def relative_lr(self) -> bool:
        """Whether the learning rate is a multiple of the RMS of the initial context's entries."""
        return isinstance(self.lr, str)

    def absolute_lr(self, rms: float) -> float:
        """Return the learning rate for an initial context of this RMS."""
        return absolute_lr(self.lr, rms)

    @property
    def tunes(self) -> bool:
        """Whether there is anything to tune."""
        return bool(self.terms) and self.steps > 0

    @property
    def ordered(self) -> bool:
        """Whether answers depend on the images before."""
        return bool(self.rule) and self.make_rule().ordered

    @property
    def reads_views(self) -> bool:
        """Whether the answer depends on views other than the plain one."""
        ruled = bool(self.rule) and self.make_rule().reads_views
        return self.tunes or ruled or any(step.reads_views for step in self.make_posthoc())

    @property
    def needs(self) -> tuple[str, ...]:
        """What it needs beyond features: "gradient" (of the text tower), "stream" (images in order), "labels" (few)."""
        labels = bool(self.rule) and self.make_rule().labelled
        return ("gradient",) * self.tunes + ("stream",) * self.ordered + ("labels",) * labels

    @property
    def idle(self) -> dict[str, str]:
        """The settings that change nothing of its answers, and why."""
        taken = parameters(rules.get(self.rule)) if self.rule else []
        scaling = () if self.cats else ("t_min", "t_max", "detach_temperature")
        tuning = [name for name in ("steps", "lr", "weight_decay") if not self.terms and name not in taken]
        return dict.fromkeys(scaling, "it has no confidence-aware temperatures") | dict.fromkeys(
            tuning, "it tunes nothing"
        )

    @property
    def cost(self) -> str:
        """What an image costs, in words, beside the labels' texts, which are encoded once."""
        views = "all views" if self.reads_views else "the plain view"
        passes = f"{self.steps} backward and {self.steps} forward" if self.tunes else "no"
        return f"{views}; {passes} text passes"

    def image_passes(self, views: int) -> int:
        """Return how often an image with this many views passes through the image tower; zero-shot needs one pass."""
        return views if self.reads_views else 1

    def check_views(self, views: int) -> None:
        """Refuse a number of views per image that is too small for the selection, the rule or a post-hoc step."""
        parts: list[Rule | PostHoc] = [self.make_rule()] if self.rule else []
        makers = [objectives.get(term.objective) for term in self.terms] + ([rules.get(self.rule)] if self.rule else [])
        selects = not self.include_plain and any("target" in parameters(make) for make in makers)
        least = max((part.least_views for part in (*parts, *self.make_posthoc())), default=1)
        least = max(least, 2 if selects else 1)
        if views < least:
            raise InvalidOptionError(
                f"The method '{self.name}' needs {least} views per image, and views is {views}.",
                hint=f"Use {least} views or more.",
            )

    def target(self) -> Target:
        """Return the target p_aug of this method."""
        scaling = ConfidenceTemperature(t_min=self.t_min, t_max=self.t_max, detach=self.detach_temperature)
        temperature = scaling if self.cats else None
        return Target(selection=self.selection, include_plain=self.include_plain, temperature=temperature)

    def objective(self) -> Sum:
        """Return the objective that this method minimises."""
        target = self.target()
        return Sum(tuple((term.weight, term.build(target)) for term in self.terms))

    def make_rule(self) -> Rule:
        """Return the rule that answers."""
        make = rules.get(self.rule)
        shared = self.shared_with_rule()
        if self.relative_lr and "lr" in shared:
            raise InvalidOptionError(
                f"lr is {self.lr!r}, and the rule '{self.rule}' tunes no context.", hint="Give an absolute number."
            )
        check_parameters(f"rule '{self.rule}'", self.rule_options, make, list(shared))
        return rules.make(self.rule, {**self.rule_options, **shared})

    def shared_with_rule(self) -> dict[str, Any]:
        """Return the parameters that the rule receives from the method."""
        own = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)} | {"target": self.target()}
        return {name: own[name] for name in parameters(rules.get(self.rule)) if name in own}

    def make_posthoc(self) -> tuple[PostHoc, ...]:
        """Return the post-hoc steps."""
        return tuple(step.build() for step in self.posthoc)

    def before_posthoc(self) -> str:
        """Return what identifies the answer before post-hoc steps: methods that share it compute it once."""
        settings = {name: value for name, value in self.settings().items() if name not in ("name", "posthoc")}
        return json.dumps(settings, sort_keys=True, default=str)

    def on_shift(self) -> Method:
        """Return the method with the weights published for natural distribution shifts."""
        terms = (term if (w := term.shift_weight) is None else replace(term, weight=w) for term in self.terms)
        return replace(self, terms=tuple(terms))

    def on_dataset(self, name: str) -> Method:
        """Fill in the rule's published per-dataset parameters; explicit options take precedence."""
        published = self.make_rule().published(name) if self.rule else {}
        return replace(self, rule_options={**published, **self.rule_options}) if published else self

    def settings(self) -> dict[str, Any]:
        """Return all settings that results depend on, as plain values."""
        unused = [name for name in ("rule", "rule_options", "posthoc") if not getattr(self, name)]
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in ("about", *unused)}

    def describe(self) -> str:
        """Return the settings in one line.

        >>> Method(name="mine", terms=(Term("entropy"), Term("dispersion", 50.0, 20.0))).describe()
        'entropy + 50 x dispersion (20 on shifts), selection 0.1, steps 1, lr 0.005, weight decay 0.01'
        """
        after = "".join(f", then {_call(step.name, step.options)}" for step in self.posthoc)
        return (self._describe_rule() if self.rule else self._describe_tuning()) + after

    def _describe_tuning(self) -> str:
        if not self.tunes:
            return "nothing is tuned"
        parts = [" + ".join(_describe(term) for term in self.terms)]
        if self.cats:
            detached = ", constant in the gradient" if self.detach_temperature else ""
            parts.append(f"temperatures {self.t_min:g} to {self.t_max:g}{detached}")
        parts.append(self._describe_selection())
        return ", ".join([*parts, f"steps {self.steps}, lr {describe_lr(self.lr)}, weight decay {self.weight_decay:g}"])

    def _describe_rule(self) -> str:
        rule, shared = self.make_rule(), self.shared_with_rule()
        own = {name: getattr(rule, name) for name in parameters(rules.get(self.rule)) if name not in shared}
        parts = [_call(self.rule, own)]
        parts += [self._describe_selection()] if "target" in shared else []
        return ", ".join(
            [
                *parts,
                *(
                    f"{name.replace('_', ' ')} {value:g}"
                    for name, value in shared.items()
                    if isinstance(value, int | float)
                ),
            ]
        )

    def _describe_selection(self) -> str:
        return f"selection {self.selection:g}" + ("" if self.include_plain else " without the plain view")


def parameters(make: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a registered class or function."""
    return list(inspect.signature(make).parameters)


def check_parameters(
    owner: str, options: Mapping[str, Any], make: Callable[..., Any], given: list[str] | None = None
) -> None:
    """Refuse options that are no parameters of ``make``, of another type, or given to it by the method."""
    known = [name for name in parameters(make) if name not in (given or ())]
    for option in options:
        if option not in known:
            raise UnknownNameError.of("parameter", option, known, owner=f"the {owner}")
    check_options(make, options, f"the {owner}")


def _describe(term: Term) -> str:
    times = "" if term.weight == 1 else f"{term.weight:g} x "
    shifted = "" if term.shift_weight is None else f" ({term.shift_weight:g} on shifts)"
    return f"{times}{_call(term.objective, term.options)}" + shifted


def _call(name: str, options: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{option}={value}" for option, value in options.items())
    return f"{name}({listed})" if listed else name


def _check_range(name: str, value: float, fine: bool, accepted: str) -> None:
    if not fine:
        raise InvalidOptionError(f"{name} is {value}.", hint=f"It must be {accepted}.")
