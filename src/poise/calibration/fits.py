"""Penalised likelihood fits of the calibrators, for many weightings of the same images at a time.

Cross-validation and the bootstrap fit the same images again and again with other weights [R, N]. The weak priors
(log T ~ N(0, 1); then a, b ~ N(1, 1/4), m ~ N(0, 1/4)) have their mode where nothing is changed. They make fits exist
for a single image, for images that are all right or all wrong, and for ties; a few dozen images outweigh them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import scipy  # imports scipy.special when it is first used

from poise.calibration.chunks import Table, in_chunks
from poise.metrics.sample import Floats, Ints

TINY = float(np.finfo(np.float32).tiny)  # probabilities of 0 are raised to this
CLIP = 1e-6  # confidences are kept this far away from 0 and 1 where their logarithms are taken
REACH = 5.0  # |log T| is at most this
STEP = 0.125  # of log T in the table
NEWTON_STEPS = 60
HALVINGS = 30
PULL = 4.0  # of the prior on (a, b, m): one over its variance
STILL = 1e-9  # Newton's steps converge quadratically: what is left after a step as small as this is rounding
ROUNDING = 1e-13  # relative, of a loss


class Fit(ABC):
    """Fits of one calibrator to the same N images with different weights."""

    @abstractmethod
    def __init__(self, probs: Floats, labels: Ints) -> None: ...

    @abstractmethod
    def parameters(self, weights: Floats) -> Floats:
        """Return the fitted parameters [R, P] for how often each image counts [R, N]."""

    @abstractmethod
    def confidences(self, parameters: Floats) -> Floats:
        """Return the calibrated confidences [R, N] under ``parameters`` [R, P]."""

    def refined(self, parameters: Floats, weights: Floats) -> Floats:
        """Return ``parameters`` [P] of one weighting [N] to full precision."""
        return parameters


class TemperatureFit(Fit):
    """Fits of T: softmax(log p / T) maximises the likelihood of the labels.

    With x = log p - log p_top, the log-likelihood needs only S = -log of the top label's confidence as a function of
    θ = log T. S and its derivative are tabulated once, in float32, and interpolated by cubic polynomials (errors below
    1e-4 in θ); `refined` does not use the table.
    """

    def __init__(self, probs: Floats, labels: Ints) -> None:
        logs = np.log(np.maximum(probs, TINY))
        self._x = logs - logs.max(1, keepdims=True)  # [N, C], at most 0
        self._label = self._x[np.arange(len(labels)), labels]  # [N]
        self._grid = np.arange(-REACH, REACH + STEP / 2, STEP)  # [G]
        self._values = np.empty((len(labels), len(self._grid)))  # [N, G] S
        self._gradients = np.empty_like(self._values)  # dS / dθ
        narrow = self._x.astype(np.float32)

        def work(rows: slice) -> None:
            for column, theta in enumerate(self._grid):
                scaled = narrow[rows] * np.float32(np.exp(-theta))
                powers = np.exp(scaled)
                total = powers.sum(1)
                self._values[rows, column] = np.log(total)
                self._gradients[rows, column] = -np.einsum("nc,nc->n", powers, scaled) / total

        in_chunks(work, *probs.shape)

    def parameters(self, weights: Floats) -> Floats:
        """Return T [R, 1]: the best point of the grid, then the minimum of the cubic polynomial beside it."""
        inverse, label = np.exp(-self._grid), weights @ self._label  # [G], [R]
        values = weights @ self._values - label[:, None] * inverse + self._grid**2 / 2
        gradients = weights @ self._gradients + label[:, None] * inverse + self._grid
        rows, best = np.arange(len(weights)), values.argmin(1)
        left = np.clip(best - (gradients[rows, best] > 0), 0, len(self._grid) - 2)
        ends = [part[rows, at] for part in (values, gradients) for at in (left, left + 1)]
        return np.exp(self._grid[left] + STEP * _cubic_minimum(*ends))[:, None]

    def confidences(self, parameters: Floats) -> Floats:
        """Return the confidences [R, N] at the temperatures [R, 1], from the table."""
        place = (np.log(parameters[:, 0]) + REACH) / STEP
        left = np.clip(place.astype(np.int64), 0, len(self._grid) - 2)
        t = (place - left)[:, None]
        v0, v1 = self._values.T[left], self._values.T[left + 1]  # [R, N]
        g0, g1 = STEP * self._gradients.T[left], STEP * self._gradients.T[left + 1]
        return np.exp(-(v0 + t * (g0 + t * (3 * (v1 - v0) - 2 * g0 - g1 + t * (2 * (v0 - v1) + g0 + g1)))))

    def refined(self, parameters: Floats, weights: Floats) -> Floats:
        """Return T [1] after Newton steps in float64."""
        theta = float(np.log(parameters[0]))
        for _ in range(NEWTON_STEPS):
            gradient, curvature = self._derivatives(theta, weights)
            step = gradient / curvature if curvature > 0 else 0.0
            theta, before = float(np.clip(theta - np.clip(step, -STEP, STEP), -REACH, REACH)), theta
            if abs(theta - before) < STILL:
                break
        return np.exp([theta])

    def exact_confidences(self, temperature: float) -> Floats:
        """Return the confidences [N] at one temperature, not from the table."""
        out = np.empty(len(self._x))

        def work(rows: slice) -> None:
            out[rows] = 1 / np.exp(self._x[rows] / temperature).sum(1)

        in_chunks(work, *self._x.shape)
        return out

    def _derivatives(self, theta: float, weights: Floats) -> tuple[float, float]:
        inverse = np.exp(-theta)
        moments = np.empty((2, len(weights)))

        def work(rows: slice) -> None:
            scaled = self._x[rows] * inverse
            powers = np.exp(scaled)
            powers /= powers.sum(1, keepdims=True)
            moments[0, rows] = np.einsum("nc,nc->n", powers, scaled)
            moments[1, rows] = np.einsum("nc,nc,nc->n", powers, scaled, scaled)

        in_chunks(work, *self._x.shape)
        mean, square = moments
        label = self._label * inverse
        return (float(weights @ (label - mean)) + theta, float(weights @ (mean + square - mean**2 - label)) + 1)


class BetaFit(Fit):
    """Fits of (a, b, m, T): sigmoid(a ln c - b ln(1 - c) + m) is the chance that the top label is right; a, b >= 0.

    c is the top label's confidence at the temperature T, which is fitted first. The rest is a logistic regression on
    two features with a convex penalty, fitted by projected Newton steps.
    """

    _prior = np.array([1.0, 1.0, 0.0])
    _floor = np.array([0.0, 0.0, -np.inf])

    def __init__(self, probs: Floats, labels: Ints) -> None:
        self._temperature = TemperatureFit(probs, labels)
        self._correct = (probs.argmax(1) == labels).astype(np.float64)

    def parameters(self, weights: Floats) -> Floats:
        """Return (a, b, m, T) [R, 4]."""
        temperatures = self._temperature.parameters(weights)
        features = beta_features(self._temperature.confidences(temperatures))
        return np.hstack([self._curves(features, weights), temperatures])

    def confidences(self, parameters: Floats) -> Floats:
        """Return the confidences [R, N] under (a, b, m, T) [R, 4]."""
        return _chances(beta_features(self._temperature.confidences(parameters[:, 3:])), parameters[:, :3])

    def refined(self, parameters: Floats, weights: Floats) -> Floats:
        """Return (a, b, m, T) [4] without the table of temperatures."""
        temperature = self._temperature.refined(parameters[3:], weights)
        features = beta_features(self._temperature.exact_confidences(float(temperature[0])))
        return np.concatenate([self._curves(features[None], weights[None])[0], temperature])

    def _curves(self, features: Floats, weights: Floats) -> Floats:
        """Return (a, b, m) [R, 3] for features [R, N, 3]."""
        now = np.tile(self._prior, (len(weights), 1))
        loss = self._loss(features, now, weights)
        for _ in range(NEWTON_STEPS):
            step, size = self._step(features, now, weights), np.ones((len(now), 1))
            for _ in range(HALVINGS):  # halve the steps of the rows that would get worse
                trial = np.maximum(now + size * step, self._floor)
                value = self._loss(features, trial, weights)
                worse = value > loss + ROUNDING * (1 + np.abs(loss))
                if not worse.any():
                    break
                size[worse] /= 2
            moved = np.abs(trial - now).max()
            now, loss = trial, value
            if moved < STILL:
                break
        return now

    def _loss(self, features: Floats, curves: Floats, weights: Floats) -> Floats:
        logits = np.einsum("rnk,rk->rn", features, curves)
        losses = np.logaddexp(0, logits) - self._correct * logits
        penalty = PULL * ((curves - self._prior) ** 2).sum(1) / 2
        return np.einsum("rn,rn->r", weights, losses) + penalty

    def _step(self, features: Floats, curves: Floats, weights: Floats) -> Floats:
        chance = _chances(features, curves)
        gradient = np.einsum("rn,rnk->rk", weights * (chance - self._correct), features) + PULL * (curves - self._prior)
        weighted = (weights * chance * (1 - chance))[:, :, None] * features
        curvature = weighted.transpose(0, 2, 1) @ features + PULL * np.eye(3)
        held = (curves <= self._floor) & (gradient > 0)  # at the bound, and pushed against it
        gradient[held] = 0
        free = ~held
        curvature = np.where(free[:, :, None] & free[:, None, :], curvature, np.eye(3))
        return -np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]


def _chances(features: Floats, curves: Floats) -> Floats:
    return np.asarray(scipy.special.expit(np.einsum("rnk,rk->rn", features, curves)))


def beta_features(confidence: Table) -> Floats:
    """Return ln c, -ln(1 - c) and 1 [..., 3] of confidences [...]."""
    clipped = np.clip(confidence.astype(np.float64), CLIP, 1 - CLIP)
    return np.stack([np.log(clipped), -np.log1p(-clipped), np.ones_like(clipped)], axis=-1)


def _cubic_minimum(v0: Floats, v1: Floats, g0: Floats, g1: Floats) -> Floats:
    """Return where in [0, 1] the cubic polynomial with these values and gradients at 0 and 1 has its minimum."""
    g0, g1 = STEP * g0, STEP * g1
    c2, c3 = 3 * (v1 - v0) - 2 * g0 - g1, 2 * (v0 - v1) + g0 + g1  # v0 + g0 t + c2 t² + c3 t³
    root = np.sqrt(np.maximum(c2**2 - 3 * c3 * g0, 0))
    below = c2 + root  # -g0 / (c2 + root) is the root with positive curvature, without cancellation where c2 > 0
    inside = np.where(np.abs(below) > 1e-300, -g0 / np.where(np.abs(below) > 1e-300, below, 1), 0.0)
    at = np.stack([np.zeros_like(v0), np.ones_like(v0), np.clip(inside, 0, 1)])
    return at[(v0 + at * (g0 + at * (c2 + at * c3))).argmin(0), np.arange(len(v0))]
