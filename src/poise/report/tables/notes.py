"""The notes below a table of results: images, settings, intervals, what is left out, sources of published numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from poise import metrics as rows
from poise.data import catalog
from poise.report.published import paper as published
from poise.report.records.calibrated import notes as calibration_notes
from poise.report.records.groups import Group
from poise.report.records.scores import printed
from poise.report.tables.block import TableBlock
from poise.text import counted

FLOOR = (
    "the floor is what perfectly calibrated answers with the same confidences and as many images have on average, by "
    "chance alone (a line of floors has the largest of the methods). A value near its floor may be noise, and so may "
    "a difference as small as that of two floors: bold also takes that difference out."
)
P_VALUE = (
    "* p < 0.05 if every confidence were right (exact test: the number of right answers is then Poisson binomial; of "
    "several seeds, twice the mean p-value). Averages have no p-value."
)
DASHES = "A dash: not run, or the metric has no value there; no average without all datasets."


@dataclass(frozen=True)
class _Shown:
    """A table, and the sources of the published numbers in it."""

    block: TableBlock
    sources: Sequence[str]

    @cached_property
    def groups(self) -> list[Group]:
        """The groups behind the table."""
        block = self.block
        groups = block.board.records.chosen(setting=block.setting)
        return [group for group in groups if group.dataset in block.layout.datasets]


def table_notes(block: TableBlock, sources: Sequence[str]) -> list[str]:
    """Return sentences on the images, the settings, the intervals, what is left out, and published numbers."""
    shown = _Shown(block, sources)
    return [sentence for note in _NOTES for sentence in note(shown)]


def _images(shown: _Shown) -> Iterator[str]:
    block = shown.block
    sizes = {group.dataset: group.n for group in shown.groups}
    seeds = sorted({seed for group in shown.groups for seed in group.seeds})
    images = ", ".join(f"{catalog.heading(name)} {sizes[name]}" for name in block.layout.datasets)
    over = f"mean over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} only"
    yield f"Model {block.setting.model}; images: {images}; {over}."


def _settings(shown: _Shown) -> Iterator[str]:
    if changed := shown.block.board.records.changed(shown.block.setting):
        yield f"Settings that are not the defaults: {', '.join(changed)}."


def _widths(shown: _Shown) -> Iterator[str]:
    """Yield a sentence with the widest interval and the largest standard deviation of each metric."""
    block, half, spread = shown.block, [], []
    for metric in block.metrics:
        scores = [score for method in block.methods for score in block.scores(method, metric) if score is not None]
        if scores:
            title = rows.get(metric).title
            width = max(max(high - value, value - low) for value, low, high in (score.interval for score in scores))
            half.append(f"{title} ±{printed(metric, width)}")
            if deviations := [score.std for score in scores if score.std is not None]:
                spread.append(f"{title} {printed(metric, max(deviations))}")
    kinds = f"{block.board.resamples} bootstrap resamples; Wilson's for a share that is the same under all seeds"
    intervals = f"95 % confidence intervals over images ({kinds})"
    deviations_text = f" Standard deviations over seeds are at most: {', '.join(spread)}." if spread else ""
    yield f"{intervals} reach at most: {', '.join(half)}.{deviations_text}"


def _floors(shown: _Shown) -> Iterator[str]:
    if floored := [rows.get(metric).title for metric in shown.block.metrics if rows.get(metric).floor]:
        yield f"{', '.join(floored)}: {FLOOR}"


def _p_values(shown: _Shown) -> Iterator[str]:
    if tested := [rows.get(metric).title for metric in shown.block.metrics if rows.get(metric).p_value]:
        yield f"{', '.join(tested)}: {P_VALUE}"


def _gaps(shown: _Shown) -> Iterator[str]:
    block = shown.block
    pairs = [(method, metric) for method in block.methods for metric in block.metrics]
    if any(None in block.scores(*pair) and not block.lacks(*pair) for pair in pairs):
        yield DASHES


def _calibration(shown: _Shown) -> Iterator[str]:
    records = shown.block.board.records
    yield from calibration_notes(shown.groups, lambda dataset: len(records.classes(dataset)))


def _left_out(shown: _Shown) -> Iterator[str]:
    failed, uneven = sum(group.errors for group in shown.groups), sum(group.uneven for group in shown.groups)
    if failed or uneven:
        pairs = counted(uneven, "image-method pair")
        yield f"Left out: {counted(failed, 'row')} with errors, {pairs} that some seed lacks."


def _fallbacks(shown: _Shown) -> Iterator[str]:
    if untuned := sum(int(group.pooled["fallback"].sum()) for group in shown.groups):
        yield f"{counted(untuned, 'answer')} fell back to the un-tuned prompt because tuning was not finite."


def _unfinished(shown: _Shown) -> Iterator[str]:
    yield from shown.block.board.records.unfinished()


def _other_methods(shown: _Shown) -> Iterator[str]:
    """Yield the methods that were run and that the imitated table does not have."""
    layout = shown.block.layout
    others = dict.fromkeys(group.method for group in shown.groups if group.method not in layout.methods)
    if layout.name and others:
        yield f"Run, but not in {layout.name}: {', '.join(others)}."


def _missing_datasets(shown: _Shown) -> Iterator[str]:
    layout = shown.block.layout
    missing = [catalog.heading(name) for name in shown.block.printed_datasets if name not in layout.datasets]
    if not missing:
        return
    text = f"Not run of {layout.name}: {', '.join(missing)}."
    if any(shown.sources):
        same = "covers the same datasets as ours"
        mixed = f"{same}, or all of its datasets in a row without other numbers"
        over = {"table5": "is over all of its datasets"}.get(layout.name, mixed if "peers" in layout.name else same)
        text = f"{text} The published average {over}."
    yield text


def _paper(shown: _Shown) -> Iterator[str]:
    if tables := sorted({number for source in shown.sources for number in re.findall(r"Table \d", source)}):
        origin = f"{published.PAPER}, {', '.join(tables)}, with {published.MODEL}"
        yield f"Published: {origin}; other models differ in level."


def _other_papers(shown: _Shown) -> Iterator[str]:
    if others := dict.fromkeys(source for source in shown.sources if source and published.PAPER not in source):
        yield f"Published, with {published.MODEL}, under differing protocols: {'; '.join(others)}."


_NOTES: Sequence[Callable[[_Shown], Iterable[str]]] = (
    _images,
    _settings,
    _widths,
    _floors,
    _p_values,
    _gaps,
    _calibration,
    _left_out,
    _fallbacks,
    _unfinished,
    _other_methods,
    _missing_datasets,
    _paper,
    _other_papers,
)
