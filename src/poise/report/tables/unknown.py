"""How well each method's scores find images of classes that the labels leave out (``unknown`` of a run)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from poise import metrics
from poise.data import catalog
from poise.errors import InvalidDatasetError
from poise.metrics.bootstrap import interval
from poise.metrics.outside import fpr95, outside_auroc
from poise.metrics.sample import Bools, Floats
from poise.report.records.groups import Group, SeedRows
from poise.report.records.runs import Runs, load
from poise.report.tables.table import Cell, Line, Table

_RESAMPLES = 200


def _margin(rows: SeedRows) -> Floats | None:
    if rows.probs is None or rows.probs.shape[1] < 2:
        return None
    top = np.sort(rows.probs.astype(np.float64), axis=1)
    return np.asarray(top[:, -1] - top[:, -2])


def _above_mean(rows: SeedRows) -> Floats | None:
    """The best logit minus the mean one: what `match` comes close to, without the model's scale."""
    if rows.probs is None:
        return None
    logs = np.log(np.maximum(rows.probs.astype(np.float64), np.finfo(np.float32).tiny))
    return np.asarray(logs.max(axis=1) - logs.mean(axis=1))


SCORES: dict[str, Callable[[SeedRows], Floats | None]] = {  # higher: more likely known
    "confidence": lambda rows: np.asarray(rows["confidence"], dtype=np.float64),
    "entropy": lambda rows: -np.asarray(rows["entropy"], dtype=np.float64),
    "margin": _margin,
    "best - mean logit": _above_mean,
}


def unknown_table(runs: Runs) -> Table:
    """Return AUROC and FPR95 of every method and score with 95 % intervals over images, and accuracy and ECE."""
    groups = [group for group in load(runs).groups if group.unknown]
    if not groups:
        raise InvalidDatasetError(
            "No run has images of unknown classes.",
            hint="Run with --set unknown=0.5: half of the classes are left out.",
        )
    lines, records = [], []
    for group in groups:
        for score, numbers in _scores(group):
            auroc, rate = numbers
            samples = group.samples()
            accuracy, error = (
                float(np.mean([metrics.get(name).value(sample) for sample in samples])) for name in ("accuracy", "ece")
            )
            cells = [Cell(group.method), Cell(catalog.heading(group.dataset)), Cell(score)]
            cells += [
                Cell(f"{100 * value:.1f}", f"[{100 * low:.1f}, {100 * high:.1f}]") for value, low, high in numbers
            ]
            cells += [Cell(f"{100 * value:.2f}") for value in (accuracy, error)]
            lines.append(Line(tuple(cells), group.dataset))
            records.append(
                {
                    "dataset": group.dataset,
                    "method": group.method,
                    "score": score,
                    **{
                        name: 100 * value
                        for name, value in zip(("auroc", "auroc_low", "auroc_high"), auroc, strict=True)
                    },
                    **{
                        name: 100 * value
                        for name, value in zip(("fpr95", "fpr95_low", "fpr95_high"), rate, strict=True)
                    },
                    "accuracy": 100 * accuracy,
                    "ece": 100 * error,
                }
            )
    first = next(iter(groups[0].unknown.values())) if groups[0].unknown else None
    notes = (
        f"Images of classes that the labels leave out ({len(first.ids) if first else 0} of the first dataset) against "
        "the others. AUROC: higher is better; FPR95: share of unknown images that are accepted if 95 % of the known "
        "ones are, lower is better. Accuracy and ECE are of known images. Percent, means over seeds, 95 % intervals "
        "over images.",
    )
    columns = ("Method", "Dataset", "Score", "AUROC", "FPR95", "Acc.", "ECE")
    return Table("Out-of-distribution images", columns, tuple(lines), notes, texts=3, records=tuple(records))


def _scores(group: Group) -> Iterator[tuple[str, list[tuple[float, float, float]]]]:
    """Yield each score with AUROC and FPR95: value and interval."""
    for name, score in SCORES.items():
        pairs: list[tuple[Floats, Bools]] = []
        for seed, rows in group.seeds.items():
            parts = [score(rows), score((group.unknown or {})[seed])]
            if any(part is None for part in parts):
                break
            known = np.repeat([True, False], [len(part) for part in parts if part is not None])
            pairs.append((np.concatenate([part for part in parts if part is not None]), known))
        if len(pairs) == len(group.seeds):
            yield name, [_estimate(pairs, metric) for metric in (outside_auroc, fpr95)]


def _estimate(
    pairs: list[tuple[Floats, Bools]], metric: Callable[[Floats, Bools], float]
) -> tuple[float, float, float]:
    """Return the mean over seeds and its interval; known and unknown images are drawn again apart."""
    value = float(np.mean([metric(*pair) for pair in pairs]))
    numbers = np.random.default_rng(0)
    draws = []
    for _ in range(_RESAMPLES):
        known = pairs[0][1]
        inside, outside = np.flatnonzero(known), np.flatnonzero(~known)
        chosen = np.concatenate([numbers.choice(inside, len(inside)), numbers.choice(outside, len(outside))])
        draws.append(np.mean([metric(scores[chosen], mask[chosen]) for scores, mask in pairs]))
    found = interval(value, np.array(draws))
    return found.value, found.low, found.high
