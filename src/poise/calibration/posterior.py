"""Fits a calibrator to labelled images: the posterior mean over curves, under a prior that leaves most models alone.

A curve (`calibrators.Curve`) has a temperature T and, for the top label's confidence c at that temperature, the chance
sigmoid(m + b logit c) to be right. With the probability `Prior.unchanged`, the prior says that the probabilities are
right as they are. Otherwise log T, m and log b are independent, Student t with 2 degrees of freedom around 0 (which is
no change) with the scales of `Prior`: most models need a small change, and heavy tails let few labels find a large one.

The likelihood is that of the whole label: the top label or not, and if not, which of the others. The second part says
much about the temperature while labels are few; but the temperature that suits the others need not suit the top label,
so that all of them together count as at most `Prior.others` images. A share `NOISE` of the others is uniform, so that
one odd label does not decide on the temperature.

Integration. If v is logistic with scale 1/2, then √2 sinh v is Student t with 2 degrees of freedom; in v the posterior
has light tails and is smooth. A grid of 7³ points, which is moved, scaled and sheared to the posterior's mean and
covariance a few times, integrates it (the trapezoidal rule converges faster than any power of the step there).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.calibrators import CLIP, TINY, Calibrator, Curve
from poise.calibration.chunks import in_chunks
from poise.metrics.bootstrap import Interval
from poise.metrics.sample import Floats, Ints, checked_count, checked_probs

HALF, STEP = 3, 1.25  # of the grid, in standard deviations of the posterior
STAGES = 12  # at most; in each, the grid shrinks at most to a quarter
NOISE = 0.05
REACH = 5.0  # log T and log b are at most this
DROPPED = 1e-3  # weight of the curves that are left out, because each of them matters least
FOLDS = 10


@dataclass(frozen=True)
class Prior:
    """What is expected before any label is seen; chosen on simulated models (benchmarks/calibrator_prior.py).

    Attributes:
        unchanged: probability that the model is calibrated as it is.
        scales: of log T, m and log b otherwise.
        others: images that wrong answers count for at most, as far as they say which other label is correct.
    """

    unchanged: float = 0.8
    scales: tuple[float, float, float] = (0.2, 0.4, 0.27)
    others: float = 10.0


PRIOR = Prior()


@dataclass(frozen=True)
class Fit:
    """The result of `fit_calibrator`.

    Attributes:
        calibrator: the posterior mean.
        unchanged: posterior probability that the probabilities are calibrated as they are.
        intervals: if they are not, the temperature, slope b and shift m with their 95 % credible intervals.
    """

    calibrator: Calibrator = field(repr=False)
    unchanged: float
    intervals: dict[str, Interval]


def fit_calibrator(probs: ArrayLike, labels: ArrayLike, *, prior: Prior = PRIOR) -> Fit:
    """Fit a calibrator, which is usable from about 10 labelled images on.

    Args:
        probs: class probabilities [N, C] of labelled images.
        labels: class indices [N].
        prior: what is expected before.

    >>> fit = fit_calibrator([[0.9, 0.1]] * 20, [0] * 10 + [1] * 10)
    >>> fit.unchanged < 0.01, fit.calibrator.apply([[0.9, 0.1]]).round(1).tolist()
    (True, [[0.6, 0.4]])
    """
    return _fit(ImageTable(*checked_probs(probs, labels)), prior)


def held_out(probs: ArrayLike, labels: ArrayLike, *, folds: int = FOLDS, seed: int = 0) -> Floats:
    """Return probabilities [N, C], each image's calibrated by a fit without it (cross-validation).

    Args:
        probs: probabilities [N, C] before calibration.
        labels: correct classes [N].
        folds: number of parts; each is calibrated by a fit on the others.
        seed: of the division into parts.
    """
    table, truth = checked_probs(probs, labels)
    parts = min(checked_count("folds", folds), len(truth))
    part = np.random.Generator(np.random.Philox(seed)).permutation(len(truth)) % parts
    out, images = table.copy(), ImageTable(table, truth)
    for at in range(parts if parts > 1 else 0):
        out[part == at] = _fit(images.take(part != at), PRIOR).calibrator.apply(table[part == at])
    return out


class ImageTable:
    """What the likelihood reads of N images."""

    def __init__(self, probs: Floats, labels: Ints) -> None:
        rows, top = np.arange(len(labels)), probs.argmax(1)
        logs = np.log(np.maximum(probs, TINY))
        logs -= logs[rows, top][:, None]
        self.label = logs[rows, labels]
        self.right = top == labels
        logs[rows, top] = -np.inf
        self.others = logs.astype(np.float32)  # [N, C] log ratios to the top label, which has none

    def take(self, chosen: Floats) -> ImageTable:
        """Return the images at these positions."""
        new = object.__new__(ImageTable)
        new.label, new.right, new.others = self.label[chosen], self.right[chosen], self.others[chosen]
        return new

    def rest(self, temperature: float) -> Floats:
        """Return (1 - c) / c [N] of the confidences c at a temperature."""
        out = np.empty(len(self.label))

        def work(rows: slice) -> None:
            with np.errstate(under="ignore"):
                out[rows] = np.exp(self.others[rows] * np.float32(1 / temperature)).sum(1)

        in_chunks(work, *self.others.shape)
        return np.maximum(out, TINY)

    def log_likelihood(self, temperature: float, shift: Floats, slope: Floats, others: float) -> Floats:
        """Return the log-likelihood [K] of K curves of one temperature; see `Prior` for ``others``."""
        rest = self.rest(temperature)
        logit = -np.log(np.clip(rest, CLIP / (1 - CLIP), (1 - CLIP) / CLIP))
        sign = np.where(self.right, 1.0, -1.0)
        log_chance = scipy.special.log_expit(sign * (shift[:, None] + slope[:, None] * logit))
        wrong = ~self.right
        share = np.exp(self.label[wrong] / temperature) / rest[wrong]
        uniform = NOISE / max(self.others.shape[1] - 1, 1)
        counted = min(1.0, others / max(int(wrong.sum()), 1))
        return np.asarray(log_chance.sum(1) + counted * np.log((1 - NOISE) * share + uniform).sum())


def _fit(images: ImageTable, prior: Prior) -> Fit:
    axis = STEP * np.arange(-HALF, HALF + 1)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(-1, 3)
    centre, spread = np.zeros(3), 0.9 * np.eye(3)  # of v; those of the prior
    for _ in range(STAGES):
        v = centre + grid @ spread.T
        log_weight = _log_posterior(images, prior, v, len(axis))
        weights = np.exp(log_weight - log_weight.max())
        weights /= weights.sum()
        mean = weights @ grid
        covariance = (grid - mean).T @ ((grid - mean) * weights[:, None])
        size = np.diag(covariance)
        if np.abs(mean).max() < 0.25 and size.min() > 0.6 and size.max() < 1.3:
            break
        centre = centre + spread @ mean
        spread = spread @ np.linalg.cholesky(covariance + np.eye(3) / 16)
    evidence = scipy.special.logsumexp(log_weight) + 3 * math.log(STEP) + np.log(np.abs(np.diag(spread))).sum()
    as_it_is = images.log_likelihood(1.0, np.zeros(1), np.ones(1), prior.others)[0]
    odds = math.log(prior.unchanged) + as_it_is - math.log(1 - prior.unchanged) - evidence if prior.unchanged else -700
    unchanged = float(scipy.special.expit(odds))
    theta = _parameters(prior, v)
    return Fit(
        _mean(unchanged, weights, theta), unchanged, _intervals(prior, centre + spread @ mean, spread, covariance)
    )


def _parameters(prior: Prior, v: Floats) -> Floats:
    """Return log T, m and log b [K, 3] of points [K, 3]."""
    theta = math.sqrt(2) * np.array(prior.scales) * np.sinh(np.clip(v, -8, 8))
    return np.clip(theta, [-REACH, -2 * REACH, -REACH], [REACH, 2 * REACH, REACH])


def _log_posterior(images: ImageTable, prior: Prior, v: Floats, temperatures: int) -> Floats:
    """Return the log of prior times likelihood [K] at points [K, 3], sorted by their few different temperatures."""
    theta = _parameters(prior, v)
    parts = np.split(theta, temperatures)
    found = [
        images.log_likelihood(math.exp(part[0, 0]), part[:, 1], np.exp(part[:, 2]), prior.others) for part in parts
    ]
    return np.concatenate(found) - 2 * np.log(np.cosh(v)).sum(1) - 3 * math.log(2)


def _mean(unchanged: float, weights: Floats, theta: Floats) -> Calibrator:
    """Return the posterior mean without the temperatures, and then the curves, that matter least."""
    planes = weights.reshape(2 * HALF + 1, -1)
    weights = np.where(planes.sum(1, keepdims=True) < DROPPED, 0, planes).ravel()
    order = np.argsort(weights, kind="stable")
    kept = np.sort(order[np.cumsum(weights[order]) > DROPPED])
    share = np.round((1 - unchanged) * weights[kept] / weights[kept].sum(), 9)
    values = np.round(np.column_stack([np.exp(theta[kept, 0]), theta[kept, 1], np.exp(theta[kept, 2])]), 9)
    curves = [Curve(w, t, b, b, m) for w, (t, m, b) in zip(share.tolist(), values.tolist(), strict=True) if w > 0]
    return Calibrator((Curve(max(0.0, 1 - sum(curve.weight for curve in curves))), *curves))


def _intervals(prior: Prior, centre: Floats, spread: Floats, covariance: Floats) -> dict[str, Interval]:
    """Return the parameters at the posterior's centre, with the points 1.96 standard deviations away."""
    away = scipy.special.ndtri(0.975) * np.sqrt(np.diag(spread @ covariance @ spread.T))
    middle, low, high = _parameters(prior, np.stack([centre, centre - away, centre + away]))
    rows = np.stack([middle, low, high])
    columns = {"temperature": np.exp(rows[:, 0]), "shift": rows[:, 1], "slope": np.exp(rows[:, 2])}
    return {name: Interval(*column.tolist()) for name, column in columns.items()}
