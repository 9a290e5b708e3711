"""The zero-shot gate: before hours of work, zero-shot accuracy and ECE must be the published ones.

Both are deterministic but for the preprocessing, so that a difference means that something is not as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poise.data import catalog
from poise.errors import PoiseError
from poise.evaluate.config import RunConfig
from poise.metrics import ece
from poise.metrics.shares import wilson_interval
from poise.report.records.groups import Group
from poise.reproduce.bands import GATE, published_values
from poise.reproduce.causes import Cause
from poise.text import counted

ZERO_SHOT = "zero-shot"
LEVEL = 0.99  # of the interval of the accuracy, where only some images are taken


class GateError(PoiseError, ValueError):
    """Zero-shot numbers that are not the published ones; ``lines`` has one sentence per number and per cause."""

    code = "gate"

    @property
    def lines(self) -> list[str]:
        """The sentences of the message, for a terminal."""
        return [*self.message.split("\n"), self.hint]


@dataclass(frozen=True)
class Check:
    """One zero-shot number beside the published ones, in percent."""

    dataset: str
    metric: str
    measured: float
    low: float  # of its interval, where only some of the images were taken; otherwise the number itself
    high: float
    published: tuple[float, ...]
    images: int
    judged: bool = True  # ECE of some images has another floor than that of all

    @property
    def allowed(self) -> tuple[float, float]:
        """The accepted range: the published numbers, and the tolerance on both sides."""
        return min(self.published) - GATE[self.metric], max(self.published) + GATE[self.metric]

    @property
    def passed(self) -> bool:
        """Whether the number, or some number of its interval, is accepted; true if it is not judged."""
        least, most = self.allowed
        return not self.judged or (self.low <= most and self.high >= least)

    def __str__(self) -> str:
        least, most = self.allowed
        printed = ", ".join(f"{value:g}" for value in self.published)
        return (
            f"{self.dataset}: zero-shot {self.metric} is {self.measured:.2f} on {counted(self.images, 'image')}; "
            f"published {printed}, accepted {least:.2f} to {most:.2f}"
        )


def gate_config(config: RunConfig) -> RunConfig:
    """Return the run of the gate: zero-shot, from the plain view, with the template of the dataset."""
    return replace(
        config,
        name=f"{config.run_id}-gate",
        title="Zero-shot gate",
        methods=(ZERO_SHOT,),
        options={},
        seeds=config.seeds[:1],
        views=1,
        framework="tpt",
        framework_options={},
        init="template",
        calibrate=0,
        batch_size=0,
        chunk=0,
    )


def checks(group: Group) -> list[Check]:
    """Compare the zero-shot answers on one dataset with what is published; nothing where nothing is."""
    (rows,) = group.seeds.values()
    whole = group.dataset in catalog.datasets and group.n >= catalog.row(group.dataset).images
    accuracy = float(rows["correct"].mean())
    low, high = (accuracy, accuracy) if whole else wilson_interval(accuracy, group.n, LEVEL)
    error = ece(rows["confidence"], rows["correct"].astype(bool))
    numbers = {"accuracy": (accuracy, low, high), "ece": (error, error, error)}
    found = []
    for metric, values in numbers.items():
        published = tuple(published_values(ZERO_SHOT, group.dataset, metric))
        if published:
            measured, least, most = (100 * value for value in values)
            judged = whole or metric == "accuracy"
            found.append(Check(group.dataset, metric, measured, least, most, published, group.n, judged))
    return found


def refuse(failed: Sequence[Check], why: dict[str, list[Cause]]) -> None:
    """Raise an error that names the numbers that are not the published ones, and what may be the cause."""
    if not failed:
        return
    lines = []
    for dataset in dict.fromkeys(check.dataset for check in failed):
        lines += [f"{check}." for check in failed if check.dataset == dataset]
        lines += [f"  {cause.state}: {cause.name} ({cause.evidence})" for cause in why[dataset]]
    raise GateError(
        "\n".join(["The zero-shot gate stops the run, because these numbers are not the published ones.", *lines]),
        hint="Correct what was found and run the same command again. If the model is not CLIP ViT-B/16, add "
        "--no-gate: then nothing is compared with published numbers.",
    )
