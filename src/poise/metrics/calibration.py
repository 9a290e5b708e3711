"""Calibration errors as fractions: ECE (Naeini et al., 2015), SCE (class-wise ECE), adaptive ECE and MCE, 20 bins each.

The definitions are those behind the published tables: C-TPT's and O-TPT's ECE; FPP's SCE, AECE and MCE.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.binning import assign, equal_mass, equal_width
from poise.metrics.checks import Floats, checked_count, checked_probs


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
