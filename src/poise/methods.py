"""The named methods, one row each, with all that is specific to a method."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from poise.errors import InvalidOptionError, UnknownNameError
from poise.objectives import ConfidenceTemperature, Sum, Target, objectives
from poise.registry import Registry, check_options
from poise.types import Objective


@dataclass(frozen=True)
class Term:
    """A weighted objective. An objective with a parameter ``target`` receives the method's target."""

    objective: str  # a registered name
    weight: float = 1.0
    shift_weight: float | None = None  # the published weight on natural distribution shifts
    options: Mapping[str, Any] = field(default_factory=dict)  # parameters of the objective

    def __post_init__(self) -> None:
        _check_range("weight", self.weight, 0 <= self.weight < math.inf, "0 or above")
        known = [name for name in self._parameters() if name != "target"]
        for option in self.options:
            if option not in known:
                raise UnknownNameError.of(f"parameter of the objective '{self.objective}'", option, known)

    def build(self, target: Target) -> Objective:
        """Return the objective, without its weight."""
        shared = {"target": target} if "target" in self._parameters() else {}
        return objectives.get(self.objective)(**self.options, **shared)

    def _parameters(self) -> list[str]:
        return list(inspect.signature(objectives.get(self.objective)).parameters)


@dataclass(frozen=True, kw_only=True)
class About:
    """How lists, tables and figures present a method."""

    description: str = ""
    citation: str = ""
    colour: str = "#8A8A8A"
    dash: str = "-"  # matplotlib's line style
    order: int = 100  # lower ones are listed first


@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe as data: a sum of weighted objectives with one target, and the settings of AdamW, which minimises it.

    >>> Method(name="mine", terms=(Term("divergence"), Term("dispersion", 5.0)), cats=True).describe()
    'divergence + 5 x dispersion, temperatures 0.1 to 10, selection 0.1, steps 1, lr 0.005, weight decay 0.01'
    """

    name: str
    terms: tuple[Term, ...] = ()  # empty: nothing is tuned
    selection: float = 0.1  # fraction of views in the target
    include_plain: bool = True  # whether the plain view may be one of them
    cats: bool = False  # confidence-aware temperatures in the target
    t_min: float = 0.1
    t_max: float = 10.0
    detach_temperature: bool = False
    steps: int = 1
    lr: float | str = 5e-3  # or a multiple of the RMS of the initial context's entries: "0.3rms"
    weight_decay: float = 0.01
    about: About = About()

    def __post_init__(self) -> None:
        _check_range("steps", self.steps, self.steps >= 0 and int(self.steps) == self.steps, "a whole number from 0")
        _check_range("lr", self.lr, 0 < self._lr_number() < math.inf, "above 0, or such a number with rms: '0.3rms'")
        _check_range("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "0 or above")
        self.target()  # checks the selection and the temperatures

    @property
    def relative_lr(self) -> bool:
        """Whether the learning rate is a multiple of the RMS of the initial context's entries."""
        return isinstance(self.lr, str)

    def absolute_lr(self, rms: float) -> float:
        """Return the learning rate of AdamW, with six digits if it is relative, so that it can be given as printed.

        Args:
            rms: the root mean square of the initial context's entries; an absolute learning rate doesn't depend on it.

        >>> get("tpt").absolute_lr(0.02), get("tpt", lr="0.3rms").absolute_lr(0.02)
        (0.005, 0.006)
        """
        if not self.relative_lr:
            return float(self.lr)
        lr = float(f"{self._lr_number() * rms:.6g}")
        _check_range(f"lr='{self.lr}' for an initial context of RMS {rms:g}", lr, 0 < lr < math.inf, "above 0")
        return lr

    def _lr_number(self) -> float:
        """The learning rate without its unit; NaN for a text that is not such a number."""
        if isinstance(self.lr, str):
            try:
                return float(self.lr.removesuffix("rms")) if self.lr.endswith("rms") else math.nan
            except ValueError:
                return math.nan
        return self.lr

    @property
    def tunes(self) -> bool:
        """Whether there is anything to tune."""
        return bool(self.terms) and self.steps > 0

    def target(self) -> Target:
        """Return the target p_aug of this method."""
        scaling = ConfidenceTemperature(t_min=self.t_min, t_max=self.t_max, detach=self.detach_temperature)
        temperature = scaling if self.cats else None
        return Target(selection=self.selection, include_plain=self.include_plain, temperature=temperature)

    def objective(self) -> Sum:
        """Return the objective that this method minimises."""
        target = self.target()
        return Sum(tuple((term.weight, term.build(target)) for term in self.terms))

    def on_shift(self) -> Method:
        """Return the method with the weights published for natural distribution shifts."""
        terms = (term if (w := term.shift_weight) is None else replace(term, weight=w) for term in self.terms)
        return replace(self, terms=tuple(terms))

    def settings(self) -> dict[str, Any]:
        """Return all settings that results depend on, as plain values."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "about"}

    def describe(self) -> str:
        """Return the settings in one line.

        >>> get("c-tpt").describe()
        'entropy + 50 x dispersion (20 on shifts), selection 0.1, steps 1, lr 0.005, weight decay 0.01'
        """
        if not self.tunes:
            return "nothing is tuned"
        parts = [" + ".join(_describe(term) for term in self.terms)]
        if self.cats:
            detached = ", constant in the gradient" if self.detach_temperature else ""
            parts.append(f"temperatures {self.t_min:g} to {self.t_max:g}{detached}")
        parts.append(f"selection {self.selection:g}" + ("" if self.include_plain else " without the plain view"))
        lr = f"{self._lr_number():g}" + (" x RMS of the initial context" if self.relative_lr else "")
        return ", ".join([*parts, f"steps {self.steps}, lr {lr}, weight decay {self.weight_decay:g}"])


def _describe(term: Term) -> str:
    times = "" if term.weight == 1 else f"{term.weight:g} x "
    options = ", ".join(f"{name}={value}" for name, value in term.options.items())
    shifted = "" if term.shift_weight is None else f" ({term.shift_weight:g} on shifts)"
    return f"{times}{term.objective}" + (f"({options})" if options else "") + shifted


def _check_range(name: str, value: float | str, fine: bool, accepted: str) -> None:
    if not fine:
        raise InvalidOptionError(f"{name} is {value!r}.", hint=f"It must be {accepted}.")


methods: Registry[Method] = Registry("method")


def register(method: Method) -> Method:
    """Register a method by its name for the command line, the benchmark, tables and figures.

    >>> spread = Method(name="kld+spread", terms=(Term("divergence"), Term("dispersion", 5.0)))
    >>> register(spread).name in names()
    True
    >>> unregister("kld+spread")
    """
    return methods.add(method.name)(method)


def unregister(name: str) -> None:
    """Remove the method called ``name`` from the registry."""
    methods.remove(name)


for _method in (
    Method(name="zero-shot", steps=0, about=About(
        description="the template as it is; nothing is tuned", colour="#000000", dash=":", order=0,
    )),
    Method(name="tpt", terms=(Term("entropy"),), about=About(
        description="minimises the entropy of the confident views' mean prediction",
        citation="Shu et al., 2022", colour="#D55E00", order=1,
    )),
    Method(name="c-tpt", terms=(Term("entropy"), Term("dispersion", 50.0, 20.0)), about=About(
        description="tpt with a term that keeps the class texts apart",
        citation="Yoon et al., 2024", colour="#E69F00", dash="--",
        order=2,
    )),
    Method(name="o-tpt", terms=(Term("entropy"), Term("orthogonality", 18.0, 2.0)), about=About(
        description="tpt with a term that makes the class texts orthogonal", citation="Sharifdeen et al., 2025",
        colour="#CC79A7", dash="-.", order=3,
    )),
    Method(name="tpt+cats", terms=(Term("entropy"),), cats=True, about=About(
        description="tpt with confidence-aware temperatures (ablation)", colour="#56B4E9", dash="--", order=4,
    )),
    Method(name="kld", terms=(Term("divergence"),), about=About(
        description="KL(p_aug || p) without temperatures (ablation)", colour="#009E73", dash="-.", order=5,
    )),
    Method(name="kld+cats", terms=(Term("divergence"),), cats=True, about=About(
        description="KL(p_aug || p) with confidence-aware temperatures: the paper's method, and the default",
        citation="Choi et al.", colour="#0072B2", order=6,
    )),
):  # fmt: skip
    register(_method)

_FIXED = ("name", "terms", "cats", "about")


def names() -> list[str]:
    """Return all method names in display order."""
    return sorted(methods, key=lambda name: methods.get(name).about.order)


def get(name: str, /, **options: Any) -> Method:
    """Return the method called ``name`` with some of its options changed.

    Args:
        name: a registered method.
        options: settings of the target and the optimiser, ``weight`` (of the regulariser, if there is one), and, under
            an objective's name, a dictionary of that objective's parameters. What the method minimises can't be
            changed, so that a record called "tpt" is TPT: for another objective, make a `Method` with another name.

    >>> get("kld+cats", steps=3).steps
    3
    >>> get("c-tpt", weight=30.0).terms[1].weight
    30.0
    """
    method = methods.get(name)
    known = [entry.name for entry in dataclasses.fields(Method) if entry.name not in _FIXED]
    known += ["weight"] if len(method.terms) == 2 else []
    known += [term.objective for term in method.terms]
    for option in options:
        if option in _FIXED:
            raise InvalidOptionError(
                f"The option '{option}' would make '{name}' another method.",
                hint="Make a Method with another name, and poise.methods.register it.",
            )
        if option not in known:
            raise UnknownNameError.of(f"option of the method '{name}'", option, known)
    terms = []
    for term in method.terms:
        parameters = options.pop(term.objective, {})
        if not isinstance(parameters, Mapping):
            raise InvalidOptionError(
                f"The option '{term.objective}' of '{name}' is {parameters!r}.",
                hint=f"Name a parameter of the objective: {term.objective}.PARAMETER.",
            )
        terms.append(replace(term, options={**term.options, **parameters}))
    if "weight" in options:  # on shifted data too
        check_options(Term, {"weight": options["weight"]}, f"'{name}'")
        terms[1] = replace(terms[1], weight=options.pop("weight"), shift_weight=None)
    check_options(Method, options, f"'{name}'")
    return replace(method, terms=tuple(terms), **options)
