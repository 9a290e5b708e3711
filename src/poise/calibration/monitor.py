"""Whether later images are still like the calibration images: a test without labels, valid after every image.

Each new value (a confidence, or a match) is ranked among the calibration values and the new values before it. If all of
them are exchangeable, these ranks, with ties broken at random, are independent and uniform (conformal p-values; Vovk,
Gammerman and Shafer, Algorithmic Learning in a Random World). A gambler who bets on them can't win: his capital is a
test martingale, which ever reaches 1 / a with a probability of at most a (Ville's inequality).

Confidence and match have a gambler each. Neither may see the other's ranks: both kinds of ranks together say more about
where later ones lie, so that the mean of the two capitals is no martingale. Each therefore has half of alpha.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics.sample import Floats
from poise.results import Result
from poise.text import counted

JUMP = 0.001  # share of the capital that is laid anew on all bets before each image, so that a late change is noticed
PRIOR = np.array([1 / 2, *[1 / 12] * 6])  # shares of the bets at first; the first bet keeps its capital
_DIGITS = 6  # values that differ by rounding, as between devices, are ties
LARGEST = 700.0  # log of the largest evidence that is told apart; exp of more is no double


def bets(p: float) -> Floats:
    """Return what each bet pays for a p-value: densities on [0, 1] that are high where ranks are low, high, extreme ...

    >>> bets(0.5).tolist()
    [1.0, 1.0, 0.5, 1.0, 0.5, 0.0, 2.0]
    """
    low, far = 1 - p, abs(2 * p - 1)
    return np.array([1.0, 2 * p, 4 * p**3, 2 * low, 4 * low**3, 2 * far, 2 * (1 - far)])


class Gambler:
    """Bets on the ranks of one kind of value."""

    def __init__(self, values: Sequence[float] | Floats) -> None:
        self.log_capital = 0.0
        self._shares = PRIOR
        self._seen = sorted(round(float(value), _DIGITS) for value in values)

    def update(self, value: float, u: float) -> None:
        """Take the next value; ``u`` in [0, 1) breaks ties."""
        value = round(value, _DIGITS)
        low, high = bisect_left(self._seen, value), bisect_right(self._seen, value)
        p = (low + u * (high - low + 1)) / (len(self._seen) + 1)
        insort(self._seen, value)
        paid = ((1 - JUMP) * self._shares + JUMP * PRIOR) * bets(p)
        self.log_capital += math.log(paid.sum())
        self._shares = paid / paid.sum()


class Monitor:
    """Says when images are no longer like the calibration images; `Calibration.monitor` makes it.

    If calibration images and new ones are exchangeable, it ever raises an alarm with a probability of at most
    ``alpha``, however many images there are and whenever one looks.

    >>> watch = Monitor([at / 100 for at in range(100)])
    >>> for _ in range(20):
    ...     watch.update(0.03)
    >>> watch.alarm, watch.rang, watch.images
    (True, 6, 20)

    Args:
        confidence: of the calibration images, before calibration.
        match: of the calibration images; None where it is not known.
        alpha: probability of a false alarm over the whole stream.
        seed: of the random numbers that break ties.

    Attributes:
        rang: the number of the image, from 1, at which the alarm was raised; None if it was not.
        trail: the evidence after each image.
    """

    def __init__(
        self,
        confidence: Sequence[float] | Floats,
        match: Sequence[float] | Floats | None = None,
        *,
        alpha: float = 0.01,
        seed: int = 0,
    ) -> None:
        if not 0 < alpha < 1:
            raise InvalidOptionError(f"alpha is {alpha}.", hint="Give a probability between 0 and 1, such as 0.01.")
        given = {"confidence": confidence} if match is None else {"confidence": confidence, "match": match}
        self.alpha = alpha
        self.rang: int | None = None
        self.trail: list[float] = []
        self._random = np.random.default_rng(seed)
        self._gamblers = {name: Gambler(values) for name, values in given.items()}
        self._state: dict[str, Any] = {
            **{name: [float(value) for value in values] for name, values in given.items()},
            "alpha": alpha,
            "seed": seed,
            "answers": array("d"),  # one after the other, because a server sees many
        }

    @property
    def images(self) -> int:
        """How many new images were seen."""
        return len(self.trail)

    @property
    def evidence(self) -> float:
        """How strongly the images so far speak against exchangeability; the alarm is raised at 1 / alpha."""
        largest = max(gambler.log_capital for gambler in self._gamblers.values())
        return math.exp(min(largest, LARGEST)) / len(self._gamblers)

    @property
    def alarm(self) -> bool:
        """Whether the evidence ever reached 1 / alpha."""
        return self.rang is not None

    def update(self, answer: Result | float, match: float | None = None) -> None:
        """Take the next image.

        Args:
            answer: the result for the image, or its confidence before calibration.
            match: of the image (`Result.match`), where only a confidence is given.
        """
        if isinstance(answer, Result):
            match = answer.match
            answer = answer.confidence if answer.raw_confidence is None else answer.raw_confidence
        if not 0 <= answer <= 1:
            raise InvalidOptionError(f"A confidence is {answer}.", hint="Give a probability from 0 to 1.")
        values = {"confidence": float(answer)}
        if "match" in self._gamblers:
            if match is None or not math.isfinite(match):
                raise InvalidOptionError(
                    f"The match of an image is {match}.", hint="The calibration has matches: give `Result.match`, too."
                )
            values["match"] = float(match)
        for name, value in values.items():
            self._gamblers[name].update(value, float(self._random.random()))
        self._state["answers"].extend(values.values())
        self.trail.append(self.evidence)
        if self.rang is None and self.evidence >= 1 / self.alpha:
            self.rang = self.images

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: all that was seen."""
        flat, kinds = self._state["answers"].tolist(), len(self._gamblers)
        return {**self._state, "answers": [flat[at : at + kinds] for at in range(0, len(flat), kinds)]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Monitor:
        """Return the monitor that `to_dict` was called on, by showing it the same answers again."""
        made = cls(values["confidence"], values.get("match"), alpha=values["alpha"], seed=values["seed"])
        for answer in values["answers"]:
            made.update(*answer)
        return made

    def __str__(self) -> str:
        """Return what was found, as a sentence."""
        if self.rang is None:
            return (
                f"No sign after {counted(self.images, 'image')} that they differ from the calibration images (evidence "
                f"{self.evidence:.3g}, largest {max(self.trail, default=0):.3g}; the alarm is raised at "
                f"{1 / self.alpha:g})."
            )
        return (
            f"The images differ from the calibration images: alarm at image {self.rang} of {self.images} (largest "
            f"evidence {max(self.trail):.3g}; without a difference, {1 / self.alpha:g} is reached in at most "
            f"{100 * self.alpha:g} % of streams). Coverage and certified errors may no longer hold; calibrate again."
        )

    def __repr__(self) -> str:
        return f"Monitor(images={self.images}, evidence={self.evidence:.3g}, alarm={self.alarm})"
