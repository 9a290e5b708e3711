"""Which images to label: some at random, and more among those with high confidence, where thresholds are certified.

Confidences are free, and labels are not. A threshold can be certified only where a model is sure, so labels of unsure
images say nothing about it. A plan looks at the confidences of many unlabelled images once and fixes a cut-off. Labels
are then asked for images at random, for the calibrator and prediction sets, and for further images above the cut-off.

What stays exact: images are put into a random order; the first are the random part, and the next ones above the cut-off
are the rest. Those of both parts that lie above the cut-off are therefore a random sample of all images above it, and
`certify` on them holds for images above it: its thresholds are higher than the cut-off anyway. The cut-off depends on
confidences alone, and given the next lower confidence, those above it are still independent draws.

The share of images above the cut-off is chosen by what can be expected if the model is as the prior of the calibrator
says (`posterior.Prior`): certificates, and images that are answered (`worth`). That prior may be wrong; the guarantee
does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.calibrators import CLIP
from poise.calibration.certify import images_for_error, starts
from poise.calibration.levels import exact_level, failure
from poise.calibration.posterior import PRIOR
from poise.errors import InvalidOptionError
from poise.metrics.sample import Bools, Floats, Ints, checked_count, checked_top
from poise.text import counted

SHARES = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.8)  # of the images above the cut-off
RANDOM = 0.3  # of the budget, for the calibrator and sets
DRAWS = 400  # simulated outcomes of each plan
_Curve = tuple[float, float]  # slope and shift of the log-odds of a confidence


@dataclass(frozen=True)
class Expected:
    """How often a threshold would be certified, if confidences were as ``model`` says.

    Attributes:
        model: what is assumed.
        certified: share of draws with a certificate.
        answered: share of all images that would be answered, 0 without a certificate.
        alone: share of draws with a certificate if as many labels were drawn at random.
    """

    model: str
    certified: float
    answered: float
    alone: float


@dataclass(frozen=True, eq=False)
class Plan:
    """The images to label, as positions among the unlabelled ones.

    Attributes:
        random: drawn at random, for the calibrator, prediction sets, and the certificate as far as above the cut-off.
        above: further images above the cut-off, for the certificate only.
        cutoff: the confidence that all of ``above`` exceed; None without such images.
        share: of all images above the cut-off.
        expected: what can be expected, under several assumptions.
    """

    random: Ints
    above: Ints
    cutoff: float | None
    share: float
    expected: tuple[Expected, ...]

    def __len__(self) -> int:
        return len(self.random) + len(self.above)


@dataclass(frozen=True, eq=False)
class Drawn:
    """How labelled images were drawn, where not all of them are a random sample.

    Attributes:
        above: whether each image [n] was drawn among those above the cut-off only.
        cutoff: the confidence that these exceed.
        confidence: of each image [n] when the plan was made.
    """

    above: Bools
    cutoff: float
    confidence: Floats


def plan_labels(
    confidences: ArrayLike,
    budget: int,
    *,
    max_error: float | None = None,
    random: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Plan:
    """Choose the images to label.

    Args:
        confidences: of N unlabelled images [N], drawn like those to be answered later; before calibration.
        budget: how many images can be labelled.
        max_error: share of wrong answers that is to be certified; None: all images are drawn at random.
        random: how many of the budget are drawn at random; None for 30 %.
        confidence: probability with which the certificate holds.
        seed: of the draw.

    >>> plan = plan_labels(np.linspace(0.2, 0.99, 1000), 100, max_error=0.1)
    >>> len(plan.random), len(plan.above), plan.share
    (30, 70, 0.15)
    """
    values, _ = checked_top(confidences, np.zeros(np.shape(confidences)))
    delta = failure(confidence)
    count = checked_count("budget", budget)
    if count >= len(values):
        raise InvalidOptionError(
            f"The budget is {counted(count, 'label')} for {counted(len(values), 'image')}.",
            hint="Give more unlabelled images than that, or label all of them: then no plan is needed.",
        )
    order = np.random.default_rng(seed).permutation(len(values))
    if max_error is None:
        return Plan(order[:count], order[:0], None, 1.0, ())
    exact_level("max_error", max_error)
    first = round(RANDOM * count) if random is None else int(random)
    if not 0 < first <= count:
        raise InvalidOptionError(
            f"{random} images are to be drawn at random.", hint=f"Give a number from 1 to {count}."
        )
    if count < (needed := images_for_error(max_error, delta)):
        raise InvalidOptionError(
            f"{counted(count, 'label')} can't certify an error of {max_error:g}.",
            hint=f"At least {needed} are needed, all of them above the cut-off and right.",
        )
    simulated = [_Simulation(values, count, first, max_error, delta, share, seed) for share in SHARES]
    simulated = [each for each in simulated if each.possible]
    if not simulated:
        raise InvalidOptionError(
            f"{counted(len(values), 'image')} are too few to find {count - first} above a cut-off.",
            hint="Give more unlabelled images, or a smaller budget.",
        )
    prior = _prior(seed)
    best = max(simulated, key=lambda each: each.worth(prior))
    alone = _Simulation(values, count, count, max_error, delta, 1.0, seed)
    models: dict[str, Sequence[_Curve]] = {
        "confidences are right": [(1.0, 0.0)] * DRAWS,
        "they are too high (temperature 1.5)": [(1 / 1.5, 0.0)] * DRAWS,
        "they are much too high (temperature 3)": [(1 / 3, 0.0)] * DRAWS,
    }
    expected = tuple(Expected(name, *best.run(curves), alone.run(curves)[0]) for name, curves in models.items())
    rest = order[first:]
    above = rest[values[rest] > best.cutoff][: count - first]
    return Plan(order[:first], above, best.cutoff, float((values > best.cutoff).mean()), expected)


class _Simulation:
    """What a plan with a cut-off would give; ``possible`` is False where too few images lie above it."""

    def __init__(
        self, values: Floats, budget: int, first: int, max_error: float, delta: float, share: float, seed: int
    ) -> None:
        ranked = np.sort(values)[::-1]
        inside = math.floor(share * len(values))
        self.cutoff = float(ranked[inside]) if inside < len(values) else -1.0
        self._above = ranked[ranked > self.cutoff]
        self.share = len(self._above) / len(values)
        self._number = round(budget - first + self.share * first)
        self.possible = self._number <= len(self._above) and budget - first + 2 * first * self.share <= len(self._above)
        self._limits = max_error, delta
        self._seed = seed

    def run(self, curves: Sequence[_Curve]) -> tuple[float, float]:
        """Return the share of draws with a certificate, and the mean share of all images that are answered."""
        answered = self._answered(curves)
        return float((answered > 0).mean()), float(answered.mean())

    def worth(self, curves: Sequence[_Curve]) -> float:
        """Return the mean square root of the share of images that are answered: none at all counts more than fewer."""
        return float(np.sqrt(self._answered(curves)).mean())

    def _answered(self, curves: Sequence[_Curve]) -> Floats:
        """Return the share of all images that is answered, in one draw per curve; confidences have no ties."""
        generator, (max_error, delta) = np.random.default_rng(self._seed), self._limits
        logit = scipy.special.logit(np.clip(self._above, CLIP, 1 - CLIP))
        drawn = np.sort(generator.integers(len(logit), size=(len(curves), self._number)), axis=1)
        slope, shift = np.array(curves).T[:, :, None]
        wrong = generator.random(drawn.shape) >= scipy.special.expit(shift + slope * logit[drawn])
        errors, last = np.cumsum(wrong, axis=1), np.zeros(len(curves), dtype=np.int64)
        for start, part in starts(self._number, max_error, delta):
            if start <= self._number:
                passed = errors[:, start - 1 :] <= _allowed(self._number, max_error, part)[start - 1 :]
                run = np.where(passed.all(1), passed.shape[1], passed.argmin(1))
                last = np.maximum(last, np.where(run > 0, start - 1 + run, 0))
        lowest = drawn[np.arange(len(curves)), last - 1]  # positions among the images above the cut-off, surest first
        return np.where(last > 0, self.share * (lowest + 1) / len(logit), 0.0)


def _allowed(images: int, max_error: float, delta: float) -> Ints:
    """Return how many errors [images] a test accepts among the first 1, 2, ... images; -1 if it accepts none."""
    ranks = np.arange(1, images + 1)
    errors = np.arange(math.ceil(max_error * images) + 1)[:, None]
    return np.asarray((scipy.special.bdtr(errors, ranks, max_error) <= delta).sum(0) - 1)


def _prior(seed: int) -> list[_Curve]:
    """Draw curves from the calibrator's prior; the temperature acts on the top label's log-odds."""
    generator = np.random.default_rng(seed)
    theta = generator.standard_t(2, (DRAWS, 3)) * np.array(PRIOR.scales)
    theta[generator.random(DRAWS) < PRIOR.unchanged] = 0
    theta = np.clip(theta, -5, 5)
    return [(math.exp(log_b - log_t), m) for log_t, m, log_b in theta.tolist()]
