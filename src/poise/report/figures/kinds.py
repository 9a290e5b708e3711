"""The registry of figures, and what their descriptions share: which methods they show, names, titles and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from poise.data import catalog
from poise.registry import Registry
from poise.report.colours import look
from poise.report.figures.plot import KeyEntry, Panel, Plot
from poise.report.records.groups import Group, Setting
from poise.report.records.scores import Scoreboard
from poise.text import file_name

Plots = Callable[[Scoreboard], Iterator[Plot]]


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A kind of figure: what it shows, how to read it, and which metrics it needs."""

    name: str
    title: str
    about: str
    plots: Plots
    metrics: tuple[str, ...] | None = ()  # None: all


kinds = Registry[FigureKind]("figure", of=FigureKind)


def kind(name: str, title: str, about: str, metrics: tuple[str, ...] | None = ()) -> Callable[[Plots], Plots]:
    """Register the decorated function as a kind of figure."""

    def store(plots: Plots) -> Plots:
        kinds.add(name)(FigureKind(name=name, title=title, about=about, plots=plots, metrics=metrics))
        return plots

    return store


def overviews(board: Scoreboard) -> Iterator[tuple[Setting, list[str], list[str]]]:
    """Yield each setting with its datasets, and the methods that were run on all of them."""
    records = board.records
    for setting in records.settings:
        shown = (group.dataset for group in records.chosen(setting=setting) if not group.independent)
        datasets = catalog.in_order(list(dict.fromkeys(shown)))
        methods = [name for name in records.methods if all(board.images(setting, data, name) for data in datasets)]
        if datasets and methods:
            yield setting, datasets, methods


def places(
    board: Scoreboard, *, tuned: bool = False, calibrated: bool = False, independent: bool = False
) -> Iterator[tuple[Setting, str, list[Group]]]:
    """Yield each setting and dataset with its groups, or only those of methods that tune, or of calibrated ones.

    Groups of labels that apply independently have figures of their own.
    """
    records = board.records
    for setting in records.settings:
        for dataset in catalog.in_order(records.datasets):
            groups = records.chosen(setting=setting, dataset=dataset)
            shown = [
                group
                for group in groups
                if group.independent == independent
                and (not tuned or (records.tunes(group.method) and not group.calibration))
                and (not calibrated or group.calibration)
            ]
            if shown:
                yield setting, dataset, shown


def over(datasets: Sequence[str]) -> str:
    """Return what a mean is over."""
    return datasets[0] if len(datasets) == 1 else f"mean over {len(datasets)} datasets"


def size(group: Group) -> str:
    """Return the number of images, and of seeds where there are several."""
    return f"{group.n}" if len(group.seeds) == 1 else f"{group.n} x {len(group.seeds)}"


def method_height(names: Iterable[str]) -> float:
    """Return the height in inches of an axes with one line per method; long names take two lines."""
    return 0.62 + sum(0.32 if len(name) > 16 else 0.22 for name in names)


def line_key(labels: dict[str, str]) -> tuple[KeyEntry, ...]:
    """Return the key of curves: the label of each method."""
    return tuple(KeyEntry(label, look(name).colour, "line", look(name).dash) for name, label in labels.items())


def make(
    board: Scoreboard,
    kind: str,
    setting: Setting,
    panels: Sequence[Panel],
    *,
    title: str = "",
    dataset: str = "",
    heights: tuple[float, ...] = (2.6,),
    key: tuple[KeyEntry, ...] = (),
) -> Plot:
    """Return a plot named and titled after its kind, dataset and setting."""
    records = board.records
    number = f"_{records.settings.index(setting) + 1}" if len(records.settings) > 1 else ""
    name = file_name("_".join(filter(None, (kind, dataset, setting.model))) + number, unique=False)
    heading = ", ".join(filter(None, (dataset or title, records.label(setting))))
    return Plot(
        name=name, title=heading, panels=tuple(panels), setting=setting, dataset=dataset, heights=heights, key=key
    )
