"""Proper scores: negative log-likelihood and the Brier score; each per image and as a mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.checks import Floats, checked_probs, known
from poise.metrics.rows import Metric, mean_of, register

NLL_FLOOR = 1e-12  # a true class with probability 0 costs -log(1e-12) = 27.6 nats, not infinity


def nll_each(probs: ArrayLike, labels: ArrayLike, floor: float = NLL_FLOOR) -> Floats:
    """[N] -log p(label) in nats, with probabilities below ``floor`` raised to it."""
    table, truth = checked_probs(probs, labels)
    return np.asarray(-np.log(np.maximum(table[np.arange(len(truth)), truth], floor)))


def nll(probs: ArrayLike, labels: ArrayLike, floor: float = NLL_FLOOR) -> float:
    """The mean negative log-likelihood in nats.

    >>> round(nll([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    return float(nll_each(probs, labels, floor).mean())


def brier_each(probs: ArrayLike, labels: ArrayLike) -> Floats:
    """[N] Σ_k (p_k - 1[k = label])²: the multi-class form, from 0 to 2."""
    table, truth = checked_probs(probs, labels)
    own = table[np.arange(len(truth)), truth]
    return np.asarray((table**2).sum(1) - 2 * own + 1)


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """The mean Brier score, from 0 to 2.

    >>> brier([[0.0, 1.0], [0.5, 0.5]], [0, 0])
    1.25
    """
    return float(brier_each(probs, labels).mean())


register(Metric(
    name="nll", title="NLL", about="Negative log-likelihood in nats.", needs="probs", unit="nats", digits=3,
    value=lambda sample: nll(known(sample.probs), known(sample.labels)),
    weighted=lambda sample: mean_of(nll_each(known(sample.probs), known(sample.labels))),
))  # fmt: skip
register(Metric(
    name="brier", title="Brier", about="Multi-class Brier score, 0 to 2.", needs="probs", unit="score", digits=3,
    value=lambda sample: brier(known(sample.probs), known(sample.labels)),
    weighted=lambda sample: mean_of(brier_each(known(sample.probs), known(sample.labels))),
))  # fmt: skip
