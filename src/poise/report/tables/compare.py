"""Paired differences between methods, or between settings, on the same images, with confidence intervals.

The intervals of two methods may overlap although one is better on nearly every resample: the images are the same, so
the scores rise and fall together. The interval of the difference takes this into account.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics import Estimate, get
from poise.metrics.bootstrap import clearly_different
from poise.report.records.groups import Setting
from poise.report.records.runs import Records, Runs, load
from poise.report.records.scores import Scoreboard, printed, scoreboard, shown
from poise.report.tables.table import Line, Table

FLOORS = (
    "Floors: what perfectly calibrated answers with the confidences of the first and of the second would have on "
    "average, by chance alone. A difference as small as that of the floors says nothing about calibration."
)
STAR = "* The 95 % confidence interval excludes 0"
BEYOND = ", and still does so, on the same side, after the difference of the floors (if there are any) is subtracted"


@dataclass(frozen=True)
class Difference:
    """A metric of one method minus that of another method or setting, on one dataset or averaged over all of them."""

    setting: str
    dataset: str
    method: str
    against: str  # the other method, or the other setting
    metric: str
    score: Estimate
    clear: bool  # whether it excludes 0, also beyond the difference of the floors
    floors: tuple[Estimate, Estimate] | None = None  # of the two values, where the metric has a floor


def differences(
    runs: Runs, method: str, against: Sequence[str], metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """Return ``method`` minus each of ``against``, for every setting and dataset with both, and for the average."""
    records = load(runs)
    if absent := [name for name in (method, *against) if name not in records.methods]:
        raise UnknownNameError(
            f"These runs do not have the method{'s' * (len(absent) > 1)} {' and '.join(absent)}.",
            hint=f"They have: {', '.join(records.methods)}. Choose among them with --method and --against.",
        )
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    return [
        Difference(records.short_label(setting), title, method, other, metric, score, clear, floors)
        for setting in records.settings
        for other in against
        for title, metric, score, clear, floors in _paired(board, (setting, method), (setting, other), metrics)
    ]


def setting_differences(runs: Runs, baseline: str, metrics: Sequence[str], resamples: int = 1000) -> list[Difference]:
    """Return every method under each other setting, minus the same method under the setting ``baseline``.

    ``baseline`` is the name of a run, the label of a setting, or a part that only one label has.
    """
    records = load(runs)
    labels = {setting: records.label(setting) for setting in records.settings}
    header = records.headers.get(baseline)
    matches = [Setting.of(header)] if header else [setting for setting, label in labels.items() if baseline == label]
    matches = matches or [setting for setting, label in labels.items() if baseline in label]
    if len(matches) != 1:
        raise InvalidOptionError(
            f"{len(matches)} of the settings have '{baseline}' in their name.",
            hint=f"Give a run ({', '.join(records.headers)}) or a part of one label: {'; '.join(labels.values())}.",
        )
    (base,) = matches
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    return [
        Difference(records.short_label(setting), title, method, records.short_label(base), metric, score, clear, floors)
        for setting in records.settings
        if setting != base
        for method in records.methods
        for title, metric, score, clear, floors in _paired(board, (setting, method), (base, method), metrics)
    ]


_Key = tuple[Setting, str]  # a setting and a method
_Found = tuple[str, str, Estimate, bool, tuple[Estimate, Estimate] | None]


def _paired(board: Scoreboard, one: _Key, two: _Key, metrics: Sequence[str]) -> Iterator[_Found]:
    """Yield (dataset, metric, one minus two, is it clear, both floors) of datasets with both, and of their average."""
    both = [name for name in board.records.datasets if same_images(board, name, one, two)]
    columns = {name: [name] for name in both} | ({"average": both} if len(both) > 1 else {})
    for metric in metrics:
        for title, names in columns.items():
            ours, theirs = (board.average(setting, names, method, metric) for setting, method in (one, two))
            if ours and theirs:
                first, second = (board.floor(setting, names, method, metric) for setting, method in (one, two))
                floors = (first, second) if first and second else None
                yield title, metric, ours - theirs, clearly_different(ours, theirs, floors), floors


def same_images(board: Scoreboard, dataset: str, one: _Key, two: _Key) -> bool:
    """Return whether both were run; resamples are positions, so both must have the same images."""
    first, second = (board.images(setting, dataset, method) for setting, method in (one, two))
    if first and second and first != second:
        names = [board.records.label(key[0]) if one[1] == two[1] else key[1] for key in (one, two)]
        raise InvalidOptionError(
            f"On '{dataset}', {names[0]} has answers for {len(first)} images and {names[1]} for {len(second)}, "
            f"{len({*first} & {*second})} of them the same.",
            hint="Differences are paired: run both on the same images (--limit), and finish both runs.",
        )
    return bool(first and second)


def comparison(
    runs: Runs,
    method: str,
    against: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 1000,
    *,
    baseline: str = "",
) -> Table:
    """Return the differences as a table: between methods, or with a ``baseline`` between settings for every method.

    Of several runs with different settings, the first is the baseline if none is given.
    """
    records = load(runs)
    if not baseline and not isinstance(runs, str | Path | Records) and len(runs) > 1 and len(records.settings) > 1:
        baseline = next(run for run, folder in records.folders.items() if folder.is_relative_to(runs[0]))
    if baseline:
        rows = setting_differences(records, baseline, metrics, resamples)
        subject = f"Each setting minus {rows[0].against}" if rows else "Nothing to compare"
    else:
        rows, subject = differences(records, method, against, metrics, resamples), f"{method} minus the other method"
    floored = any(row.floors for row in rows)
    columns = (
        "Setting",
        "Dataset",
        "Method" if baseline else "Against",
        "Metric",
        "Difference",
        "95 % interval",
        *["Floors"] * floored,
    )
    return Table(
        "Paired differences",
        columns,
        tuple(_line(row, row.method if baseline else row.against, floored) for row in rows),
        (
            f"{subject}, on the same images and resamples; differences of percentages are points.",
            f"{STAR}{BEYOND * floored}.",
            *[FLOORS] * floored,
            *_long_names(records),
        ),
        texts=4,
        records=tuple(map(_record, rows)),
        dispensable=(len(columns) - 1,) if floored else (),
    )


def _long_names(records: Records) -> Iterator[str]:
    """Yield one note per setting that the table abbreviates to its run names."""
    for setting in records.settings:
        short, label = records.short_label(setting), records.label(setting)
        if not label.endswith(short):
            yield f"{short}: {label}."


def _line(row: Difference, other: str, floored: bool) -> Line:
    value, low, high = (printed(row.metric, number, "+") for number in (row.score.value, *row.score.bounds))
    metric = get(row.metric)
    floors = ", ".join(printed(row.metric, floor.value) for floor in row.floors or ())
    return Line.of(
        row.setting,
        row.dataset,
        other,
        metric.title,
        value + "*" * row.clear,
        f"[{low}, {high}]",
        *[floors] * floored,
        section=f"{row.setting}, {row.against}",
    )


def _record(row: Difference) -> dict[str, object]:
    value, low, high = (shown(row.metric, number) for number in (row.score.value, *row.score.bounds))
    std = row.score.std
    floors = [shown(row.metric, floor.value) for floor in row.floors] if row.floors else [None, None]
    return {
        "setting": row.setting,
        "dataset": row.dataset,
        "method": row.method,
        "against": row.against,
        "metric": row.metric,
        "difference": value,
        "low": low,
        "high": high,
        "std": None if std is None else shown(row.metric, std),
        "excludes_zero": row.clear,
        "floor": floors[0],
        "floor_against": floors[1],
    }
