"""Calibration errors as fractions: ECE (Naeini et al., 2015), SCE (class-wise ECE), adaptive ECE and MCE, 20 bins each.

The definitions are those behind the published tables: C-TPT's and O-TPT's ECE; FPP's SCE, AECE and MCE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.binning import assign, equal_mass, equal_width, mass_positions
from poise.metrics.sample import Bools, Floats, Ints, Weighted, checked_count, checked_probs


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """Expected calibration error: ``Σ_b n_b / N · |acc_b - conf_b|`` over equal-width bins.

    Args:
        confidence: probability of the predicted class [N].
        correct: whether the prediction is correct [N].
        bins: number of bins.

    >>> round(ece([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 6)
    0.1
    """
    return equal_width(confidence, correct, bins).expected_gap


def adaptive_ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """ECE over bins of equal mass; see `poise.metrics.equal_mass` for ties.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].
        bins: number of bins.
    """
    return equal_mass(confidence, correct, bins).expected_gap


def mce(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """Maximum calibration error: the largest ``|acc_b - conf_b|`` over equal-width bins that are not empty.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].
        bins: number of bins.
    """
    return equal_width(confidence, correct, bins).largest_gap


def sce(probs: ArrayLike, labels: ArrayLike, bins: int = 20) -> float:
    """Static calibration error: the mean over classes of the class-wise ECE.

    Args:
        probs: class probabilities [N, C].
        labels: class indices [N].
        bins: number of bins.
    """
    return float(classwise_ece(probs, labels, bins).mean())


def classwise_ece(probs: ArrayLike, labels: ArrayLike, bins: int = 20) -> Floats:
    """[C] ECE of each class: its probability is the confidence, and being the label is being correct.

    Args:
        probs: probabilities [N, C].
        labels: correct classes [N].
        bins: number of bins.
    """
    bins = checked_count("bins", bins)
    table, truth = checked_probs(probs, labels)
    images, classes = table.shape
    cell = assign(table, bins) + bins * np.arange(classes)
    total = np.bincount(cell.ravel(), weights=_residual(table, truth).ravel(), minlength=bins * classes)
    return np.asarray(np.abs(total).reshape(classes, bins).sum(1) / images)


def _residual(probs: Floats, labels: Ints) -> Floats:
    """[N, C] 1[k = label] - p_k; the sum over a bin is n_b · (acc_b - conf_b)."""
    residual = -probs
    residual[np.arange(len(labels)), labels] += 1.0
    return residual


def weighted_ece(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """Weighted ECE: the residual correct - confidence is summed in each bin, so the bin counts cancel."""
    table = _spread(assign(confidence, bins), correct - confidence, bins)
    return lambda counts: np.asarray(np.abs(counts @ table).sum(1) / len(confidence))


def weighted_mce(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """Weighted MCE over the bins that are not empty in the resample."""
    index = assign(confidence, bins)
    table = np.hstack([_spread(index, correct - confidence, bins), _spread(index, np.ones(len(index)), bins)])

    def weighted(counts: Floats) -> Floats:
        both = counts @ table  # [R, 2K]
        return np.asarray((np.abs(both[:, :bins]) / np.maximum(both[:, bins:], 1)).max(1))

    return weighted


def weighted_adaptive_ece(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """Weighted adaptive ECE; the bins are computed anew on each resample."""
    order = np.argsort(confidence, kind="stable")
    ranked, residual = confidence[order], (correct - confidence)[order]
    last = np.searchsorted(ranked, ranked, side="right") - 1  # last position of each tie
    ranks = mass_positions(len(ranked), bins)[1:]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        reached, running = np.cumsum(drawn, axis=1), np.cumsum(drawn * residual, axis=1)
        ends = np.stack([last[np.searchsorted(row, ranks, side="right")] for row in reached])  # [R, K]
        sums = np.diff(np.take_along_axis(running, ends, axis=1), axis=1, prepend=0.0)
        return np.asarray(np.abs(sums).sum(1) / len(ranked))

    return weighted


def weighted_sce(probs: Floats, labels: Ints, bins: int = 20) -> Weighted:
    """Weighted SCE."""
    return weighted_classwise(probs, _residual(probs, labels), bins)


def weighted_classwise(probs: Floats, residual: Floats, bins: int = 20) -> Weighted:
    """Weighted mean over classes of the class-wise ECE; ``residual`` [N, C] is what is true minus ``probs``.

    Most entries are in the first bin, which is the class's total minus the other bins.
    """
    images, classes = probs.shape
    index = assign(probs, bins)
    row, column = np.nonzero(index)
    cell, value = column * bins + index[row, column], residual[row, column]

    def weighted(counts: Floats) -> Floats:
        totals = counts @ residual  # [R, C]
        result = np.empty(len(counts))
        for at, drawn in enumerate(counts):
            sums = np.bincount(cell, weights=value * drawn[row], minlength=classes * bins).reshape(classes, bins)
            result[at] = np.abs(sums).sum() + np.abs(totals[at] - sums.sum(1)).sum()
        return result / (images * classes)

    return weighted


def _spread(index: Ints, value: Floats, bins: int) -> Floats:
    """[N, bins] with ``value`` in the column of each image's bin."""
    table = np.zeros((len(index), bins))
    table[np.arange(len(index)), index] = value
    return table
