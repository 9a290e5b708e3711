"""One method against others, or one setting against others, on the same images: paired differences with intervals.

Intervals of two methods may overlap although one is better on nearly every resample: the images are the same, so their
scores move together. The difference on each resample says what the two intervals can't.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics.bootstrap import bounds
from poise.report.runs import Setting, load
from poise.report.scores import IN_PERCENT, TITLES, Score, Scoreboard, scoreboard, shown


@dataclass(frozen=True)
class Difference:
    """A metric of one method less that of another method or setting, on one dataset or averaged over all of them."""

    setting: str
    dataset: str
    method: str
    against: str  # the other method, or the other setting
    metric: str
    score: Score

    @property
    def bounds(self) -> tuple[float, float]:
        """95 %, over images."""
        return bounds(self.score.value, self.score.draws)


def differences(
    runs: str | Path, method: str, against: Sequence[str], metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """``method`` less each of ``against``, for every setting and dataset in which both were run, and their average."""
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
    runs: str | Path, baseline: str, metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """Every method under each other setting, less the same under the one whose label is or holds ``baseline``."""
    records = load(runs)
    labels = {setting: records.label(setting) for setting in records.settings}
    meant = [setting for setting, label in labels.items() if baseline == label]
    meant = meant or [setting for setting, label in labels.items() if baseline in label]
    if len(meant) != 1:
        raise InvalidOptionError(
            f"{len(meant)} of the settings in '{runs}' have '{baseline}' in their name.",
            hint=f"Give what only one has: {'; '.join(labels.values())}.",
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


def _paired(board: Scoreboard, one: _Key, two: _Key, metrics: Sequence[str]) -> Iterator[tuple[str, str, Score]]:
    """(dataset, metric, one less two) for every dataset that both were run on, and for their average."""
    both = [name for name in board.records.datasets if _same_images(board, name, one, two)]
    columns = {name: [name] for name in both} | ({"average": both} if len(both) > 1 else {})
    for metric in metrics:
        for title, names in columns.items():
            ours, theirs = (board.average(setting, names, method, metric) for setting, method in (one, two))
            if ours and theirs:
                yield title, metric, Score(ours.value - theirs.value, ours.draws - theirs.draws)


def _same_images(board: Scoreboard, dataset: str, one: _Key, two: _Key) -> bool:
    """Whether both were run; resamples are of positions, so both must have the same images."""
    first, second = (board.find(setting, dataset, method) for setting, method in (one, two))
    if first is None or second is None:
        return False
    mine, theirs = (next(iter(found.group.seeds.values())).ids for found in (first, second))
    if mine != theirs:
        ours, others = (board.records.label(key[0]) if one[1] == two[1] else key[1] for key in (one, two))
        raise InvalidOptionError(
            f"On '{dataset}', {ours} has answers for {len(mine)} images and {others} for {len(theirs)}, "
            f"{len({*mine} & {*theirs})} of them the same.",
            hint="Differences are paired: run both on the same images (--limit), and finish both runs.",
        )
    return True


def comparison_text(
    runs: str | Path,
    method: str,
    against: Sequence[str],
    metrics: Sequence[str],
    resamples: int = 1000,
    *,
    baseline: str = "",
) -> str:
    """The differences as a Markdown table; an interval that doesn't hold 0 is marked with *.

    With a ``baseline`` settings are compared, for every method; otherwise methods.
    """
    if baseline:
        found = setting_differences(runs, baseline, metrics, resamples)
        note = f"Each setting less {found[0].against}" if found else "Nothing to compare"
    else:
        found, note = differences(runs, method, against, metrics, resamples), f"{method} less the other"
    column = "Method" if baseline else "Against"
    lines = [f"| Setting | Dataset | {column} | Metric | Difference | 95 % interval |", "|---|---|---|---|---:|---|"]
    for each in found:
        low, high = (shown(each.metric, bound) for bound in each.bounds)
        value = shown(each.metric, each.score.value)
        clear = "*" if low > 0 or high < 0 else ""
        unit = " points" if each.metric in IN_PERCENT else ""
        lines.append(
            f"| {each.setting} | {each.dataset} | {each.method if baseline else each.against} "
            f"| {TITLES[each.metric]} | {value:+.2f}{clear} | [{low:+.2f}, {high:+.2f}]{unit} |"
        )
    return "\n".join([*lines, "", f"{note}, same images and resamples; * the interval does not hold 0.", ""])
