"""Prediction sets that contain the true class with a chosen probability (split conformal prediction).

A score says how badly a class fits an image. The quantile of the scores of labelled images gives the threshold, and a
set contains every class whose score is at most that. Sets contain the true class with at least the chosen coverage, on
average over images and over calibration sets, if both were drawn alike and predicted in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from poise.calibration.chunks import Table, as_table, in_chunks
from poise.calibration.levels import exact_level
from poise.errors import InvalidOptionError
from poise.metrics.sample import Bools, Floats, Ints, check_table, checked_labels
from poise.registry import Registry

SLACK = 1e-8  # scores above the quantile by less than this are in the set: they may differ from it by rounding only

LOWEST = 1e-300  # lower probabilities count as this much

HEAD = 128  # ranks that are scored first


class PredictionSets(NamedTuple):
    """Sets of classes. Where no class qualifies, the set holds the top label, and ``empty`` is True."""

    members: Bools  #: [N, C]
    empty: Bools  #: [N]


class ClassQuantiles(NamedTuple):
    """One quantile per class; ``own`` is False where a class has too few images and shares that of all such classes."""

    values: Floats  #: [C]
    own: Bools  #: [C]


class Score(ABC):
    """How badly a class fits an image; of tied classes the first ranks higher.

    The numbers ``u`` [N] in [0, 1] randomise a score so that coverage is exact; draw them anew for each image, from a
    seeded generator. `Lac` does not need them.
    """

    def of_labels(self, probs: ArrayLike, labels: ArrayLike, u: ArrayLike | None = None) -> Floats:
        """Return the scores [N] of the true classes.

        Args:
            probs: class probabilities [N, C].
            labels: class indices [N].
            u: random numbers [N] in [0, 1].
        """
        table = as_table(probs)
        truth, noise = checked_labels(labels, *table.shape), self._noise(u, len(table))
        out = np.empty(len(table))

        def work(rows: slice) -> None:
            check_table(table[rows])
            out[rows] = self._of_labels(table[rows], truth[rows], noise[rows])

        in_chunks(work, *table.shape)
        return out

    def sets(self, probs: ArrayLike, quantile: ArrayLike, u: ArrayLike | None = None) -> PredictionSets:
        """Return the sets of the classes whose score is at most ``quantile``.

        Args:
            probs: class probabilities [N, C].
            quantile: one number (`quantile`), or one per class [C] (`class_quantiles`).
            u: random numbers [N] in [0, 1], other ones than those of the calibration images.
        """
        table = as_table(probs)
        noise, limit = self._noise(u, len(table)), np.asarray(quantile, dtype=np.float64) + SLACK
        if limit.shape not in ((), table.shape[1:]) or np.isnan(limit).any():
            raise InvalidOptionError(
                f"Quantiles of shape {limit.shape} were given, or some are not numbers.",
                hint=f"Give one number, or one for each of {table.shape[1]} classes.",
            )
        members, empty = np.empty(table.shape, dtype=bool), np.empty(len(table), dtype=bool)

        def work(rows: slice) -> None:
            chunk, inside = table[rows], members[rows]
            check_table(chunk)
            if limit.ndim:
                self._class_sets(chunk, limit, noise[rows], inside)
            else:
                self._sets(chunk, float(limit), noise[rows], inside)
            none = ~inside.any(1)
            empty[rows] = none
            inside[none, chunk[none].argmax(1)] = True

        in_chunks(work, *table.shape)
        return PredictionSets(members, empty)

    @abstractmethod
    def _of_labels(self, table: Table, truth: Ints, u: Floats) -> Floats: ...

    @abstractmethod
    def _sets(self, table: Table, limit: float, u: Floats, out: Bools) -> None: ...

    @abstractmethod
    def _class_sets(self, table: Table, limits: Floats, u: Floats, out: Bools) -> None: ...

    @abstractmethod
    def _noise(self, u: ArrayLike | None, images: int) -> Floats: ...


scores = Registry[Score]("score", of=Score)


@dataclass(frozen=True)
class Lac(Score):
    """-log p: the smallest sets on average; all images share one threshold on the probability.

    1 - p has the same order, but float64 can't tell 1 - 1e-17 from 1.
    """

    def _of_labels(self, table: Table, truth: Ints, u: Floats) -> Floats:
        return -np.log(np.maximum(table[np.arange(len(truth)), truth].astype(np.float64), LOWEST))

    def _sets(self, table: Table, limit: float, u: Floats, out: Bools) -> None:
        np.greater_equal(table, _ceil(lowest_probability(np.float64(limit)), table.dtype), out=out)

    def _class_sets(self, table: Table, limits: Floats, u: Floats, out: Bools) -> None:
        np.greater_equal(table, _ceil(lowest_probability(limits), table.dtype), out=out)

    def _noise(self, u: ArrayLike | None, images: int) -> Floats:
        return np.zeros(images)


@dataclass(frozen=True)
class Raps(Score):
    """Sum of the probabilities down to the class, minus u p, plus a penalty on ranks (APS without penalty).

    Args:
        penalty: added for each rank below ``free_ranks``; the default of RAPS' published code.
        free_ranks: ranks without penalty; likewise.
    """

    penalty: float = 0.01
    free_ranks: int = 5

    def _of_labels(self, table: Table, truth: Ints, u: Floats) -> Floats:
        own = table[np.arange(len(truth)), truth][:, None]  # [N, 1]
        above = table > own
        ties = ((table == own) & (np.arange(table.shape[1]) < truth[:, None])).sum(1)
        mass = np.where(above, table, 0).sum(1, dtype=np.float64)
        exact = own[:, 0].astype(np.float64)
        return mass + (ties + 1 - u) * exact + self._penalties(above.sum(1) + ties + 1)

    def _sets(self, table: Table, limit: float, u: Floats, out: Bools) -> None:
        # The score grows with the rank, so a set holds the first ranks: sorted values tell how many, and the last of
        # these values is a threshold on the probability. Sorting values is several times as fast as sorting indices.
        ranked = np.sort(table, axis=1)[:, ::-1]
        size = self._sizes(ranked, limit, u)
        last = np.take_along_axis(ranked, np.maximum(size - 1, 0)[:, None], axis=1)
        np.greater_equal(table, last, out=out)
        out[size == 0] = False
        rows = np.flatnonzero(out.sum(1) > size)  # ties with the last value: only the first of them are inside
        tied = table[rows] == last[rows]
        room = size[rows] - out[rows].sum(1) + tied.sum(1)
        out[rows] &= ~tied | (np.cumsum(tied, axis=1) <= room[:, None])

    def _class_sets(self, table: Table, limits: Floats, u: Floats, out: Bools) -> None:
        order = np.argsort(-table, axis=1, kind="stable")
        ranked = np.take_along_axis(table, order, axis=1)
        np.put_along_axis(out, order, self._ranked(ranked, u) <= limits[order], axis=1)

    def _sizes(self, ranked: Table, limit: float, u: Floats) -> Ints:
        """Return how many of the first ranks [N] have a score of at most ``limit``; most sets end within `HEAD`."""
        size = (self._ranked(ranked[:, :HEAD], u) <= limit).sum(1)
        if ranked.shape[1] > HEAD:
            large = np.flatnonzero(size == HEAD)
            size[large] = (self._ranked(ranked[large], u[large]) <= limit).sum(1)
        return size

    def _ranked(self, ranked: Table, u: Floats) -> Floats:
        """Return the scores [N, C] of probabilities that fall along each row."""
        wide = ranked.astype(np.float64)
        total = np.cumsum(wide, axis=1) - u[:, None] * wide
        if self.penalty:
            total += self._penalties(np.arange(1, ranked.shape[1] + 1))
        return total

    def _penalties(self, ranks: Ints) -> Floats:
        return self.penalty * np.maximum(ranks - self.free_ranks, 0)

    def _noise(self, u: ArrayLike | None, images: int) -> Floats:
        noise = np.asarray(np.nan if u is None else u, dtype=np.float64)
        if noise.shape != (images,) or not ((noise >= 0) & (noise <= 1)).all():
            raise InvalidOptionError(
                "APS and RAPS need random numbers u in [0, 1], one per image.",
                hint=f"Draw {images} numbers from a seeded generator.",
            )
        return noise


for _name, _score in (("lac", Lac()), ("aps", Raps(penalty=0.0)), ("raps", Raps())):
    scores.add(_name)(_score)


def quantile(scores: ArrayLike, coverage: float) -> float:
    """Return the k-th smallest of n scores, k = ceil((n + 1) coverage); infinite, so that all classes are in, if k > n.

    Args:
        scores: scores of the true classes of n calibration images [n].
        coverage: probability in (0, 1) that a set contains the true class; taken as the decimal number that it prints.

    >>> quantile([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9], 0.9)
    0.9
    """
    values = np.asarray(scores, dtype=np.float64)
    exact_level("coverage", coverage)
    if values.ndim != 1 or np.isnan(values).any():
        raise InvalidOptionError(
            f"Scores of shape {values.shape} were given, or some are not numbers.",
            hint="Give the scores of the true classes, one per image.",
        )
    rank = covering_rank(len(values), coverage)
    return float(np.partition(values, rank - 1)[rank - 1]) if rank <= len(values) else float("inf")


def covering_rank(images: int, coverage: float) -> int:
    """Return k = ceil((n + 1) coverage), the rank of the quantile among the scores of n images."""
    return -int(-(images + 1) * exact_level("coverage", coverage) // 1)


def class_quantiles(scores: ArrayLike, labels: ArrayLike, classes: int, coverage: float) -> ClassQuantiles:
    """Return one `quantile` per class, so that coverage holds for each class by itself.

    Args:
        scores: scores of the true classes [N].
        labels: class indices [N].
        classes: number of classes C.
        coverage: probability in (0, 1).

    Classes with fewer than `images_for_coverage` images share one quantile, that of all their images, so that coverage
    holds over all images as well. Where these are still too few, the next smallest classes join them.
    """
    values = np.asarray(scores, dtype=np.float64)
    quantile(values, coverage)  # checks both
    truth = checked_labels(labels, len(values), classes)
    counts, needed = np.bincount(truth, minlength=classes), images_for_coverage(coverage)
    order = np.argsort(counts, kind="stable")
    together = np.cumsum(counts[order])
    shared = int(np.searchsorted(counts[order], needed))  # classes that have too few
    if shared:
        shared = max(shared, min(int(np.searchsorted(together, needed)) + 1, classes))
    own = np.ones(classes, dtype=bool)
    own[order[:shared]] = False
    rest = quantile(values[~own[truth]], coverage)
    return ClassQuantiles(
        np.array([quantile(values[truth == label], coverage) if own[label] else rest for label in range(classes)]), own
    )


def images_for_coverage(coverage: float) -> int:
    """Smallest number of calibration images with a finite `quantile`.

    >>> images_for_coverage(0.9), images_for_coverage(0.95), images_for_coverage(0.99)
    (9, 19, 99)
    """
    level = exact_level("coverage", coverage)
    return -int(-level / (1 - level) // 1)


def lowest_probability(score: Floats | np.float64) -> Floats | np.float64:
    """Return the lowest probability whose LAC score is at most ``score``."""
    return np.where(score >= -np.log(LOWEST), 0.0, np.exp(-score))


def _ceil(values: Floats | np.float64, dtype: np.dtype) -> Table | np.floating:
    """Round up to ``dtype``, so that p >= limit has the answer of exact arithmetic."""
    near = values.astype(dtype)
    return np.where(near < values, np.nextafter(near, np.asarray(np.inf, dtype=dtype)), near)
