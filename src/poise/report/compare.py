"""One method against others, or one setting against others, on the same images: paired differences with intervals.

Intervals of two methods may overlap although one is better on nearly every resample: the images are the same, so their
scores move together. The difference on each resample says what the two intervals can't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poise import metrics as rows
from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics import Estimate
from poise.report.runs import Records, Setting, load, setting_of
from poise.report.scores import Scoreboard, printed, scoreboard, shown
from poise.report.table import Line, Table


@dataclass(frozen=True)
class Difference:
    """A metric of one method minus that of another method or setting, on one dataset or averaged over all of them."""

    setting: str
    dataset: str
    method: str
    against: str  # the other method, or the other setting
    metric: str
    score: Estimate


def differences(
    runs: str | Path | Records, method: str, against: Sequence[str], metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """``method`` minus each of ``against``, for every setting and dataset in which both were run, and their average."""
    records = load(runs)
    for name in (method, *against):
        if name not in records.methods:
            raise UnknownNameError.of("method in these runs", name, records.methods)
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    return [
        Difference(records.label(setting), title, method, other, metric, score)
        for setting in records.settings
        for other in against
        for title, metric, score in _paired(board, (setting, method), (setting, other), metrics)
    ]


def setting_differences(
    runs: str | Path | Records, baseline: str, metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """Every method under each other setting, minus the same under the setting that ``baseline`` names.

    ``baseline`` is the name of a run, the label of a setting, or a part of one label alone.
    """
    records = load(runs)
    labels = {setting: records.label(setting) for setting in records.settings}
    header = records.headers.get(baseline)
    meant = [setting_of(header)] if header else [setting for setting, label in labels.items() if baseline == label]
    meant = meant or [setting for setting, label in labels.items() if baseline in label]
    if len(meant) != 1:
        raise InvalidOptionError(
            f"{len(meant)} of the settings have '{baseline}' in their name.",
            hint=f"Give a run ({', '.join(records.headers)}) or what only one has: {'; '.join(labels.values())}.",
        )
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    return [
        Difference(labels[setting], title, method, labels[meant[0]], metric, score)
        for setting in records.settings
        if setting != meant[0]
        for method in records.methods
        for title, metric, score in _paired(board, (setting, method), (meant[0], method), metrics)
    ]


_Key = tuple[Setting, str]  # a setting and a method


def _paired(board: Scoreboard, one: _Key, two: _Key, metrics: Sequence[str]) -> Iterator[tuple[str, str, Estimate]]:
    """(dataset, metric, one minus two) for every dataset that both were run on, and for their average."""
    both = [name for name in board.records.datasets if _same_images(board, name, one, two)]
    columns = {name: [name] for name in both} | ({"average": both} if len(both) > 1 else {})
    for metric in metrics:
        for title, names in columns.items():
            ours, theirs = (board.average(setting, names, method, metric) for setting, method in (one, two))
            if ours and theirs:
                yield title, metric, ours - theirs


def _same_images(board: Scoreboard, dataset: str, one: _Key, two: _Key) -> bool:
    """Whether both were run; resamples are of positions, so both must have the same images."""
    mine, theirs = (board.images(setting, dataset, method) for setting, method in (one, two))
    if mine and theirs and mine != theirs:
        ours, others = (board.records.label(key[0]) if one[1] == two[1] else key[1] for key in (one, two))
        raise InvalidOptionError(
            f"On '{dataset}', {ours} has answers for {len(mine)} images and {others} for {len(theirs)}, "
            f"{len({*mine} & {*theirs})} of them the same.",
            hint="Differences are paired: run both on the same images (--limit), and finish both runs.",
        )
    return bool(mine and theirs)


def comparison(
    runs: str | Path | Records,
    method: str,
    against: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 1000,
    *,
    baseline: str = "",
) -> Table:
    """The differences as a table. With a ``baseline`` settings are compared, for every method; otherwise methods."""
    if baseline:
        found = setting_differences(runs, baseline, metrics, resamples)
        subject = f"Each setting minus {found[0].against}" if found else "Nothing to compare"
    else:
        found, subject = differences(runs, method, against, metrics, resamples), f"{method} minus the other method"
    columns = ("Setting", "Dataset", "Method" if baseline else "Against", "Metric", "Difference",
               "95 % confidence interval")  # fmt: skip
    return Table(
        "Paired differences",
        columns,
        tuple(_line(each, each.method if baseline else each.against) for each in found),
        (f"{subject}, on the same images and resamples. * The 95 % confidence interval excludes 0.",),
        texts=4,
        records=tuple(_record(each) for each in found),
    )


def _line(each: Difference, other: str) -> Line:
    low, high = (printed(each.metric, bound, "+") for bound in each.score.bounds)
    points = " points" if rows.get(each.metric).unit == "percent" else ""
    value = printed(each.metric, each.score.value, "+") + ("*" if each.score.clear else "")
    return Line.of(
        each.setting, each.dataset, other, rows.get(each.metric).title, value, f"[{low}, {high}]{points}",
        section=f"{each.setting}, {other}",
    )  # fmt: skip


def _record(each: Difference) -> dict[str, object]:
    value, low, high = (shown(each.metric, number) for number in (each.score.value, *each.score.bounds))
    std = each.score.std
    return {
        "setting": each.setting, "dataset": each.dataset, "method": each.method, "against": each.against,
        "metric": each.metric, "difference": value, "low": low, "high": high,
        "std": None if std is None else shown(each.metric, std), "excludes_zero": each.score.clear,
    }  # fmt: skip
