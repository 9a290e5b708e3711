"""The notes below a table of results: images, intervals, what is left out, and sources of published numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from poise import metrics as rows
from poise.data import catalog
from poise.report.published import paper as published
from poise.report.records.calibrated import notes as calibration_notes
from poise.report.records.scores import printed
from poise.report.tables.block import TableBlock
from poise.text import counted

FLOOR = (
    "the floor is what perfectly calibrated answers with the same confidences and as many images have on average, by "
    "chance alone (a line of floors has the largest of the methods). A value near its floor may be noise."
)


def table_notes(block: TableBlock, sources: Sequence[str]) -> list[str]:
    """Return sentences on the images, the intervals, what is left out, and the ``sources`` of published numbers."""
    records, layout = block.board.records, block.layout
    groups = [group for group in records.chosen(setting=block.setting) if group.dataset in layout.datasets]
    sizes = {group.dataset: group.n for group in groups}
    seeds = sorted({seed for group in groups for seed in group.seeds})
    images = ", ".join(f"{catalog.heading(name)} {sizes[name]}" for name in layout.datasets)
    over = f"mean over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} only"
    notes = [f"Model {block.setting.model}; images: {images}; {over}.", _widths(block)]
    if floored := [rows.get(metric).title for metric in block.metrics if rows.get(metric).floor]:
        notes.append(f"{', '.join(floored)}: {FLOOR}")
    pairs = [(method, metric) for method in block.methods for metric in block.metrics]
    if any(None in block.scores(*pair) and not block.lacks(*pair) for pair in pairs):
        notes.append("A dash: not run, or the metric has no value there; no average without all datasets.")
    notes += calibration_notes(groups, lambda dataset: len(records.classes(dataset)))
    failed, uneven = sum(group.errors for group in groups), sum(group.uneven for group in groups)
    if failed or uneven:
        pairs_left = counted(uneven, "image-method pair")
        notes.append(f"Left out: {counted(failed, 'row')} with errors, {pairs_left} that some seed lacks.")
    if untuned := sum(int(group.pooled["fallback"].sum()) for group in groups):
        notes.append(f"{counted(untuned, 'answer')} fell back to the un-tuned prompt because tuning was not finite.")
    notes += records.unfinished()
    whole = block.printed_datasets
    if missing := [catalog.heading(name) for name in whole if name not in layout.datasets]:
        same = "covers the same datasets as ours"
        mixed = f"{same}, or all of its datasets in a row without other numbers"
        over = {"table5": "is over all of its datasets"}.get(layout.name, mixed if "peers" in layout.name else same)
        notes.append(f"Not run of {layout.name}: {', '.join(missing)}. The published average {over}.")
    if tables := sorted({number for source in sources for number in re.findall(r"Table \d", source)}):
        origin = f"{published.PAPER}, {', '.join(tables)}, with {published.MODEL}"
        notes.append(f"Published: {origin}; other models differ in level.")
    if others := dict.fromkeys(source for source in sources if source and published.PAPER not in source):
        notes.append(f"Published, with {published.MODEL}, under differing protocols: {'; '.join(others)}.")
    return notes


def _widths(block: TableBlock) -> str:
    """Return a sentence with the widest interval and the largest standard deviation of each metric."""
    half, spread = [], []
    for metric in block.metrics:
        scores = [score for method in block.methods for score in block.scores(method, metric) if score is not None]
        if scores:
            title = rows.get(metric).title
            width = max(max(high - value, value - low) for value, low, high in (score.interval for score in scores))
            half.append(f"{title} ±{printed(metric, width)}")
            if deviations := [score.std for score in scores if score.std is not None]:
                spread.append(f"{title} {printed(metric, max(deviations))}")
    intervals = f"95 % confidence intervals over images ({block.board.resamples} bootstrap resamples)"
    text = f"{intervals} reach at most: {', '.join(half)}."
    return text + (f" Standard deviations over seeds are at most: {', '.join(spread)}." if spread else "")
