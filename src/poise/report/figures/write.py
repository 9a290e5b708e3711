"""Writes figures as PNG and SVG files: what the paper shows in Figures 2 to 6, and overviews, from records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import matplotlib

from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.files import write_atomic
from poise.report.figures import overall, per_dataset  # noqa: F401  (they register kinds, in this order)
from poise.report.figures.kinds import kinds
from poise.report.figures.plot import STYLE, Plot, rendered
from poise.report.records.runs import Runs, load
from poise.report.records.scores import scoreboard


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and a note on each kind of figure that was left out."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write_figures(
    runs: Runs,
    out: str | Path,
    *,
    only: Iterable[str] | None = None,
    resamples: int = 1000,
    say: Callable[[str], None] = lambda text: None,
) -> Drawn:
    """Draw figures into a folder, one PNG and one SVG file each.

    Args:
        runs: a run's folder, a folder of runs, or their records.
        out: the folder for the files.
        only: names of the kinds of figures; all by default.
        resamples: number of bootstrap resamples.
        say: called with one line before each kind of figure.
    """
    chosen = [kinds.get(name) for name in (kinds if only is None else only)]
    needed = {name for kind in chosen for name in kind.metrics or ()}
    everything = any(kind.metrics is None for kind in chosen)
    say("computing the metrics")
    board = scoreboard(load(runs), metrics=None if everything else sorted(needed), resamples=resamples)
    Path(out).mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    notes: list[str] = []
    for at, kind in enumerate(chosen, 1):
        before = len(files)
        say(f"drawing {kind.name} ({at} of {len(chosen)})")
        try:
            for plot in kind.plots(board):
                files += _save(plot, Path(out))
            if only is not None and len(files) == before:
                raise InvalidDatasetError(f"The runs have nothing for the figure '{kind.name}'.", hint=kind.about)
        except (MissingDependencyError, InvalidDatasetError) as reason:
            if only is not None:  # asked for by name
                raise
            notes.append(f"No {kind.name} figure: {reason}")
    return Drawn(tuple(files), tuple(notes))


def _save(plot: Plot, folder: Path) -> list[Path]:
    """Write two files without dates: the same records give the same figures."""
    png, svg = (folder / f"{plot.name}.{ending}" for ending in ("png", "svg"))
    with matplotlib.rc_context(STYLE):
        figure = plot.figure()
        write_atomic(png, rendered(figure, "png", metadata={"Software": None}))
        figure.set_layout_engine("none")  # the layout is computed; computing it again for the second file takes seconds
        write_atomic(svg, rendered(figure, "svg", metadata={"Date": None, "Creator": "poise"}))
    return [png, svg]
