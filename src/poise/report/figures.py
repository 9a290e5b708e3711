"""The paper's figures and two overviews as files: one PNG and one SVG each, from records alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.report import figure_kinds
from poise.report.plot import STYLE, Plot, kinds
from poise.report.runs import Records, load
from poise.report.scores import scoreboard

__all__ = ["Drawn", "figure_kinds", "kinds", "write_figures"]


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and what was left out and why."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write_figures(
    runs: str | Path | Records, out: str | Path, *, only: Iterable[str] | None = None, resamples: int = 1000
) -> Drawn:
    """Draw the kinds ``only`` (default: all) into ``out``: one PNG and one SVG each."""
    wanted = [kinds.get(name) for name in (kinds if only is None else only)]
    needed = {name for kind in wanted for name in kind.metrics or ()}
    everything = any(kind.metrics is None for kind in wanted)
    board = scoreboard(load(runs), metrics=None if everything else sorted(needed), resamples=resamples)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    notes: list[str] = []
    for kind in wanted:
        try:
            for plot in kind.plots(board):
                files += _save(plot, folder / plot.name)
        except (MissingDependencyError, InvalidDatasetError) as reason:
            if only is not None:  # asked for by name
                raise
            notes.append(f"No {kind.name} figure: {reason}")
    return Drawn(tuple(files), tuple(notes))


def _save(plot: Plot, path: Path) -> list[Path]:
    """Two files without dates in them: the same records give the same figures."""
    files = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]
    with matplotlib.rc_context(STYLE):
        figure = plot.figure()
        figure.savefig(files[0], metadata={"Software": None})
        figure.set_layout_engine("none")  # the panels are placed; placing them again for the second file takes seconds
        figure.savefig(files[1], metadata={"Date": None, "Creator": "poise"})
    return files
