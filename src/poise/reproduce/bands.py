"""How far a number may be from the published one: the seeds' spread, or that of published re-runs if it is larger.

The test images are the same, so the noise of drawing images does not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from poise.report.published import paper
from poise.report.published.peers import PEER_ROWS, SOURCES

SEED_SD = {"accuracy": 0.11, "ece": 0.15}  # points, of the paper's Table 1
SEEDS = 3  # standard deviations
GATE = {"accuracy": 0.3, "ece": 0.5}  # points beyond the published zero-shot numbers, which have no seed
OTHER_PROTOCOL = frozenset(SOURCES[name] for name in ("own templates", "files"))  # other texts, or labels used


@dataclass(frozen=True)
class Band:
    """An accepted distance in points, and where it comes from."""

    points: float
    reason: str


def published_values(
    method: str, dataset: str, metric: str, framework: str = "tpt", init: str = "template"
) -> list[float]:
    """Return what papers print for a method on a dataset under the same protocol, in percent."""
    same = {"method": method, "metric": metric, "framework": framework, "init": init}
    found = [*paper.matching(paper.ROWS, **same), *paper.matching(PEER_ROWS, **same)]
    return [row.values[dataset] for row in found if dataset in row.values and row.origin not in OTHER_PROTOCOL]


def band(row: paper.PublishedRow, dataset: str) -> Band:
    """Return the band of a printed number; of an average, if ``dataset`` is empty."""
    seeds = SEEDS * SEED_SD[row.metric]
    if dataset:
        values = published_values(row.method, dataset, row.metric, row.framework, row.init)
    else:
        others = [*paper.ROWS, *PEER_ROWS]
        same = {name: getattr(row, name) for name in ("table", "method", "metric", "framework", "init")}
        rows = [other for other in paper.matching(others, **same) if other.origin not in OTHER_PROTOCOL]
        values = [other.average for other in rows if other.average is not None]
    spread = max(values, default=0.0) - min(values, default=0.0)
    if spread > seeds:
        return Band(round(spread, 4), "spread of published re-runs")
    return Band(round(seeds, 4), f"{SEEDS} standard deviations over seeds")
