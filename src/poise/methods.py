"""The named methods, one row each: the only place where method names become objects."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from poise.errors import InvalidOptionError, UnknownNameError
from poise.objectives import ConfidenceTemperature, Sum, Target, objectives
from poise.types import Objective


@dataclass(frozen=True, kw_only=True)
class Method:
    """A recipe as data: loss against a target, plus a weighted regulariser, minimised by AdamW."""

    name: str
    loss: str | None = None  # a registered objective; None: nothing is tuned
    cats: bool = False  # confidence-aware temperatures in the target
    regulariser: str | None = None
    weight: float = 0.0  # of the regulariser
    shift_weight: float | None = None  # its published value on natural distribution shifts
    steps: int = 1
    lr: float = 5e-3
    weight_decay: float = 0.01
    selection: float = 0.1  # fraction of views that enter the target
    t_min: float = 0.1
    t_max: float = 10.0
    detach_temperature: bool = False

    def __post_init__(self) -> None:
        _check_range("steps", self.steps, self.steps >= 0 and int(self.steps) == self.steps, "a whole number from 0")
        _check_range("lr", self.lr, 0 < self.lr < math.inf, "above 0")
        _check_range("weight_decay", self.weight_decay, 0 <= self.weight_decay < math.inf, "0 or above")
        _check_range("weight", self.weight, 0 <= self.weight < math.inf, "0 or above")
        _check_range("selection", self.selection, 0 < self.selection <= 1, "above 0 and at most 1")
        _check_range("t_min", self.t_min, 0 < self.t_min <= self.t_max, "above 0 and at most t_max")

    def target(self) -> Target:
        """How this method makes p_aug."""
        scaling = ConfidenceTemperature(t_min=self.t_min, t_max=self.t_max, detach=self.detach_temperature)
        return Target(selection=self.selection, temperature=scaling if self.cats else None)

    def objective(self) -> Objective | None:
        """What this method minimises; None for zero-shot."""
        if self.loss is None:
            return None
        maker = objectives.get(self.loss)
        takes_target = any(field.name == "target" for field in dataclasses.fields(maker))  # type: ignore[arg-type]
        loss = maker(target=self.target()) if takes_target else maker()
        if self.regulariser is None:
            return loss
        return Sum(((1.0, loss), (self.weight, objectives.get(self.regulariser)())))

    def on_shift(self) -> Method:
        """The same method with the weight published for natural distribution shifts."""
        if self.shift_weight is None:
            return self
        return dataclasses.replace(self, weight=self.shift_weight)

    def describe(self) -> str:
        """Its settings in one line.

        >>> get("c-tpt").describe()
        'entropy + 50 x dispersion (20 on shifts), selection 0.1, steps 1, lr 0.005, weight decay 0.01'
        """
        if self.loss is None or not self.steps:
            return "nothing is tuned"
        told = self.loss
        if self.regulariser is not None:
            shifted = "" if self.shift_weight is None else f" ({self.shift_weight:g} on shifts)"
            told += f" + {self.weight:g} x {self.regulariser}{shifted}"
        if self.cats:
            told += f", temperatures {self.t_min:g} to {self.t_max:g}"
        settings = f"selection {self.selection:g}, steps {self.steps}, lr {self.lr:g}"
        return f"{told}, {settings}, weight decay {self.weight_decay:g}"


def _check_range(name: str, value: float, fine: bool, accepted: str) -> None:
    if not fine:
        raise InvalidOptionError(f"{name} is {value}.", hint=f"It must be {accepted}.")


_ROWS = (
    Method(name="zero-shot", steps=0),
    Method(name="tpt", loss="entropy"),
    Method(name="c-tpt", loss="entropy", regulariser="dispersion", weight=50.0, shift_weight=20.0),
    Method(name="o-tpt", loss="entropy", regulariser="orthogonality", weight=18.0, shift_weight=2.0),
    Method(name="tpt+cats", loss="entropy", cats=True),
    Method(name="kld", loss="divergence"),
    Method(name="kld+cats", loss="divergence", cats=True),
)
_TABLE = {row.name: row for row in _ROWS}

DESCRIPTIONS = {
    "zero-shot": "the template as it is; nothing is tuned",
    "tpt": "entropy of the confident views' mean (Shu et al., 2022)",
    "c-tpt": "tpt, and class texts kept apart (Yoon et al., 2024)",
    "o-tpt": "tpt, and class texts pushed to right angles (Sharifdeen et al., 2025)",
    "tpt+cats": "tpt with confidence-aware temperatures (ablation)",
    "kld": "KL(p_aug || p) without temperatures (ablation)",
    "kld+cats": "KL(p_aug || p) with confidence-aware temperatures: the paper's method, and the default",
}


def names() -> list[str]:
    """All method names, in the order of the paper's tables."""
    return list(_TABLE)


def get(name: str, **options: Any) -> Method:
    """The method called ``name`` with some of its options changed.

    >>> get("kld+cats", steps=3).steps
    3
    """
    if name not in _TABLE:
        raise UnknownNameError.of("method", name, _TABLE)
    known = [field.name for field in dataclasses.fields(Method) if field.name != "name"]
    for option in options:
        if option not in known:
            raise UnknownNameError.of("method option", option, known)
    return dataclasses.replace(_TABLE[name], **options)
