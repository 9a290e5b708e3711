"""Metrics of labels that apply independently: each label is a question with yes and no, and images count together."""

from __future__ import annotations

import numpy as np

from poise.metrics.calibration import weighted_classwise
from poise.metrics.floor import weighted_ece_floor
from poise.metrics.sample import NO, YES, Bools, Floats, Ints, Weighted


def weighted_map(chances: Floats, has: Bools) -> Weighted:
    """Weighted mean of `poise.metrics.scoring.average_precision` over the labels that some image of a resample has."""
    present = np.flatnonzero(has.any(0))
    orders = [np.argsort(-chances[:, at], kind="stable") for at in present]

    def weighted(counts: Floats) -> Floats:
        total, known = np.zeros(len(counts)), np.zeros(len(counts))
        for at, order in zip(present, orders, strict=True):
            drawn, ranked = counts[:, order], chances[order, at]
            hits = drawn * has[order, at]
            last = np.searchsorted(-ranked, -ranked[has[order, at]], side="right") - 1  # of each tie
            precision = np.cumsum(hits, 1)[:, last] / np.maximum(np.cumsum(drawn, 1)[:, last], 1)
            own = hits[:, has[order, at]]
            found = own.sum(1)
            total += (own * precision).sum(1) / np.maximum(found, 1)
            known += found > 0
        return np.where(known > 0, total / np.maximum(known, 1), 0.0)

    return weighted


def weighted_label_ece(chances: Floats, has: Bools) -> Weighted:
    """Weighted mean over labels of the ECE of their probabilities."""
    return weighted_classwise(chances, has - chances)


def weighted_label_floor(chances: Floats) -> Weighted:
    """Weighted mean over labels of the floor of their ECE."""
    floors = [weighted_ece_floor(column) for column in chances.T]
    return lambda counts: np.mean([floor(counts) for floor in floors], axis=0)


def weighted_precision(outcomes: Ints, has: Bools) -> Weighted:
    """Weighted share of right ones among all yes."""
    return _share((outcomes == YES) & has, outcomes == YES)


def weighted_recall(outcomes: Ints, has: Bools) -> Weighted:
    """Weighted share of the labels that images have for which no "no" is said."""
    return _share((outcomes != NO) & has, has)


def _share(inside: Bools, among: Bools) -> Weighted:
    """Weighted ratio of two counts over images and labels; 0 where the second one is 0."""
    one, all_of = inside.sum(1).astype(np.float64), among.sum(1).astype(np.float64)
    return lambda counts: np.asarray(counts @ one / np.maximum(counts @ all_of, 1))
