"""What one table of results shows: its columns, its scores, and which of them are marked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poise import metrics as rows
from poise.data import catalog
from poise.metrics import Estimate
from poise.metrics.bootstrap import clearly_different
from poise.report.published import paper as published
from poise.report.published.peers import PEER_LAYOUTS
from poise.report.records.groups import Setting
from poise.report.records.scores import Scoreboard
from poise.report.tables.table import Cell

OURS = "ours"  # the origin of a number
LAYOUTS = {**published.LAYOUTS, **PEER_LAYOUTS}


@dataclass(frozen=True)
class TableBlock:
    """What one table shows: a setting under a layout."""

    board: Scoreboard
    setting: Setting
    layout: published.TableLayout  # with the datasets that were run
    metrics: Sequence[str]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The datasets behind the last column."""
        return tuple(name for name in self.layout.averaged if name in self.layout.datasets)

    @property
    def printed_datasets(self) -> tuple[str, ...]:
        """All datasets of the published table that is imitated."""
        return LAYOUTS[self.layout.name].datasets if self.layout.name else ()

    @property
    def columns(self) -> list[tuple[str, tuple[str, ...]]]:
        """The heading of each column, and the datasets whose mean it shows."""
        single = [(catalog.heading(name), (name,)) for name in self.layout.datasets]
        return [*single, (self.layout.average, self.averaged)] if self.averaged else [*single]

    @property
    def methods(self) -> list[str]:
        """The layout's methods that were run."""
        run = {group.method for group in self.board.records.chosen(setting=self.setting)}
        return [name for name in self.layout.methods if name in run]

    def lacks(self, method: str, metric: str) -> bool:
        """Return whether the metric applies to a method nowhere, but to another: only calibrated ones have sets."""
        return not self._applies(method, metric) and any(self._applies(name, metric) for name in self.methods)

    def scores(self, method: str, metric: str) -> list[Estimate | None]:
        """Return one estimate per column."""
        return [self.board.average(self.setting, names, method, metric) for _, names in self.columns]

    def floors(self, method: str, metric: str) -> list[Estimate | None]:
        """Return the floor of the metric in each column."""
        return [self.board.floor(self.setting, names, method, metric) for _, names in self.columns]

    def p_values(self, method: str, metric: str) -> list[float | None]:
        """Return the metric's p-value in each column."""
        return [self.board.p_value(self.setting, names, method, metric) for _, names in self.columns]

    def best(self, metric: str) -> dict[str, list[bool]]:
        """Return for each method whether its entry in each column is marked; see `results.LEGEND`."""
        scores = {
            method: list(zip(self.scores(method, metric), self.floors(method, metric), strict=True))
            for method in self.methods
        }
        columns = [
            _best({method: row[at] for method, row in scores.items()}, metric) if self._paired(names) else set()
            for at, (_, names) in enumerate(self.columns)
        ]
        return {method: [method in marked for marked in columns] for method in self.methods}

    def _applies(self, method: str, metric: str) -> bool:
        entries = (self.board.entries.get((self.setting, name, method)) for name in self.layout.datasets)
        return any(entry is not None and metric in (*entry.scores, *entry.undefined) for entry in entries)

    def _paired(self, datasets: Sequence[str]) -> bool:
        """Return whether all methods that were run have answers for the same images: only these can be compared."""
        return all(
            len({self.board.images(self.setting, name, method) for method in self.methods} - {()}) == 1
            for name in datasets
        )

    def heads(self, name: str, metric: str) -> list[Cell]:
        """Return the first cells of a line: the method, and the metric where the table has several."""
        return [Cell(name), Cell(rows.get(metric).title)][: 1 if len(self.metrics) == 1 else 2]

    def records(
        self, origin: str, method: str, metric: str, values: Sequence[Mapping[str, Any] | None]
    ) -> Iterator[Any]:
        """Yield one record for each column that has ``values``; an average has no dataset."""
        model = self.setting.model if origin == OURS else published.MODEL
        keys = {
            "table": self.layout.title,
            "setting": self.board.records.label(self.setting),
            "model": model,
            "origin": origin,
            "method": method,
            "metric": metric,
        }
        datasets = [*self.layout.datasets, ""]
        for (column, _), dataset, value in zip(self.columns, datasets, values, strict=False):
            if value is not None:
                yield {**keys, "column": column, "dataset": dataset, **value}


def _best(scores: Mapping[str, tuple[Estimate | None, Estimate | None]], metric: str) -> set[str]:
    """Return the methods that are marked, by their scores and floors."""
    known = {method: (score, floor) for method, (score, floor) in scores.items() if score is not None}
    higher = rows.get(metric).higher_is_better
    sign = -1 if higher else 1
    if len(known) < 2 or higher is None:
        return set()
    leader, least = min(known.values(), key=lambda pair: sign * pair[0].value)
    marked = {
        method
        for method, (score, floor) in known.items()
        if not clearly_different(score, leader, (floor, least) if floor and least else None)
    }
    return marked if len(marked) < len(known) else set()
