"""Calibration errors as fractions: ECE (Naeini et al., 2015), SCE (class-wise ECE), adaptive ECE and MCE, 20 bins each.

The definitions are those behind the published tables: C-TPT's and O-TPT's ECE; FPP's SCE, AECE and MCE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.binning import assign, equal_mass, equal_width, mass_positions
from poise.metrics.checks import Bools, Floats, Ints, checked_count, checked_probs, known
from poise.metrics.rows import Metric, Weighted, register


def ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """Expected calibration error: Σ_b n_b / N · |acc_b - conf_b| over equal-width bins.

    >>> round(ece([0.9, 0.9, 0.6, 0.6], [True, True, True, False]), 6)
    0.1
    """
    return equal_width(confidence, correct, bins).expected_gap


def adaptive_ece(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """ECE over bins of equal mass; see :func:`poise.metrics.binning.equal_mass` for ties."""
    return equal_mass(confidence, correct, bins).expected_gap


def mce(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> float:
    """Maximum calibration error: the largest |acc_b - conf_b| over equal-width bins that are not empty."""
    return equal_width(confidence, correct, bins).largest_gap


def sce(probs: ArrayLike, labels: ArrayLike, bins: int = 20) -> float:
    """Static calibration error (class-wise ECE): every entry of ``probs`` is a confidence; the mean over classes."""
    return float(classwise_ece(probs, labels, bins).mean())


def classwise_ece(probs: ArrayLike, labels: ArrayLike, bins: int = 20) -> Floats:
    """[C] the ECE of each class's own column against "is it this class?"."""
    bins = checked_count("bins", bins)
    table, truth = checked_probs(probs, labels)
    images, classes = table.shape
    surplus = -table
    surplus[np.arange(images), truth] += 1.0  # Σ over a bin is n_b · (acc_b - conf_b)
    cell = assign(table, bins) + bins * np.arange(classes)
    total = np.bincount(cell.ravel(), weights=surplus.ravel(), minlength=bins * classes)
    return np.asarray(np.abs(total).reshape(classes, bins).sum(1) / images)


def ece_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """ECE: the residual correct - confidence is summed in each bin, so the bin counts cancel."""
    table = _spread(assign(confidence, bins), correct - confidence, bins)
    return lambda counts: np.asarray(np.abs(counts @ table).sum(1) / len(confidence))


def mce_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """MCE over the bins that are not empty in the resample."""
    index = assign(confidence, bins)
    table = np.hstack([_spread(index, correct - confidence, bins), _spread(index, np.ones(len(index)), bins)])

    def weighted(counts: Floats) -> Floats:
        both = counts @ table  # [R, 2K]
        return np.asarray((np.abs(both[:, :bins]) / np.maximum(both[:, bins:], 1)).max(1))

    return weighted


def adaptive_ece_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """Adaptive ECE with the bins laid anew on each resample."""
    order = np.argsort(confidence, kind="stable")
    ranked, residual = confidence[order], (correct - confidence)[order]
    last = np.searchsorted(ranked, ranked, side="right") - 1  # the end of each tie
    ranks = mass_positions(len(ranked), bins)[1:]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        reached, running = np.cumsum(drawn, axis=1), np.cumsum(drawn * residual, axis=1)
        ends = np.stack([last[np.searchsorted(row, ranks, side="right")] for row in reached])  # [R, K]
        sums = np.diff(np.take_along_axis(running, ends, axis=1), axis=1, prepend=0.0)
        return np.asarray(np.abs(sums).sum(1) / len(ranked))

    return weighted


def sce_of(probs: Floats, labels: Ints, bins: int = 20) -> Weighted:
    """SCE. Few entries leave the first bin, so only those are binned; the first bin is the class's total less them."""
    images, classes = probs.shape
    residual = -probs
    residual[np.arange(images), labels] += 1.0
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


register(Metric(
    name="ece", title="ECE", about="Expected calibration error over 20 equal-width bins (lower, upper].",
    value=lambda sample: ece(sample.confidence, sample.correct),
    weighted=lambda sample: ece_of(sample.confidence, sample.correct),
))  # fmt: skip
register(Metric(
    name="sce", title="SCE", about="Class-wise calibration error over 20 bins, mean over classes.",
    needs="probs",
    value=lambda sample: sce(known(sample.probs), known(sample.labels)),
    weighted=lambda sample: sce_of(known(sample.probs), known(sample.labels)),
))  # fmt: skip
register(Metric(
    name="aece", title="AECE", about="Calibration error over 20 bins of equal mass.",
    value=lambda sample: adaptive_ece(sample.confidence, sample.correct),
    weighted=lambda sample: adaptive_ece_of(sample.confidence, sample.correct),
))  # fmt: skip
register(Metric(
    name="mce", title="MCE", about="Largest gap between accuracy and mean confidence of a bin.",
    value=lambda sample: mce(sample.confidence, sample.correct),
    weighted=lambda sample: mce_of(sample.confidence, sample.correct),
))  # fmt: skip
