"""How commands run a job over shards: its progress, its summary and its exit code, or what it would take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

from poise.cli.exit_codes import INTERRUPTED, NOTHING_DONE, SOME_FAILED
from poise.cli.output.sink import Terminated, sigterm_raises
from poise.cli.output.verbose import remark
from poise.progress import progress_bar
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration import Calibration
    from poise.data.sources import Shard
    from poise.jobs.done import Done, Summary
    from poise.jobs.run import Engine, Job
    from poise.jobs.workers import Worker

_SHOWN = 5  # labels of the summary


@dataclass(frozen=True)
class HowToRun:
    """Options of commands that run jobs."""

    engine: Engine
    resume: bool = False
    dry_run: bool = False
    price: float | None = None
    metrics_port: int | None = None
    quiet: bool = False
    verbose: bool = False


def run_job(
    job: Job,
    shards: Sequence[Shard],
    manifest: Mapping[str, Any],
    how: HowToRun,
    *,
    worker: Callable[[], Worker] | None = None,
    calibration: Calibration | None = None,
) -> None:
    """Run a job, or what is left of it, and print a summary; with ``dry_run`` say what it would take."""
    from poise.data.sources import count_images
    from poise.jobs import run as jobs

    if how.dry_run:
        _say_estimate(job, shards, how)
        return
    finished = jobs.begin(job.out, manifest, shards, resume=how.resume)
    images = count_images(shards)
    seen = _Seen(len(shards), len(finished), counted=images > 0)
    done_before = sum(done.images for done in finished.values())
    made = worker() if worker is not None and how.engine.name != "ray" and len(finished) < len(shards) else None
    with ExitStack() as held:
        if how.metrics_port is not None:
            from poise.jobs.metrics import JobMetrics

            metrics = held.enter_context(JobMetrics(how.metrics_port, len(shards), len(finished)))
            remark(f"metrics at http://127.0.0.1:{metrics.port}/metrics", quiet=how.quiet)
            seen.watchers.append(metrics.add)
        bar = held.enter_context(
            progress_bar("images", images, min(done_before, images), quiet=how.quiet, note=seen.note)
        )
        try:
            with sigterm_raises():
                summary = jobs.run(
                    job, shards, how.engine, finished=finished, worker=made, progress=bar, watch=seen.add
                )
        except KeyboardInterrupt as stop:
            remark(f"stopped after {seen.note()}. Finished parts are kept; --resume continues.")
            raise typer.Exit(143 if isinstance(stop, Terminated) else INTERRUPTED) from None
    _say_summary(summary, job.out, len(shards), how, calibration)


class _Seen:
    """What the progress says beside images: shards, failures and, where nobody has counted images, the time left."""

    def __init__(self, shards: int, finished: int, *, counted: bool) -> None:
        self.shards, self.finished, self.failures = shards, finished, dict[str, int]()
        self.before, self.counted, self.began = finished, counted, time.monotonic()
        self.watchers: list[Callable[[Done], None]] = []

    def add(self, done: Done) -> None:
        self.finished += not done.problem
        failures = {"unreachable_shard": 1} if done.problem else done.failures
        for code, number in failures.items():
            self.failures[code] = self.failures.get(code, 0) + number
        for watch in self.watchers:
            watch(done)

    def note(self) -> str:
        failed = "".join(f", {number} {code}" for code, number in sorted(self.failures.items()))
        return f"{self.finished} of {counted(self.shards, 'shard')}{self._left()}{failed}"

    def _left(self) -> str:
        """Return the time left if the other shards take as long as those of this attempt."""
        done = self.finished - self.before
        if self.counted or not done or self.finished == self.shards:
            return ""
        seconds = (time.monotonic() - self.began) / done * (self.shards - self.finished)
        return f", about {timedelta(seconds=round(seconds))} left"


def _say_summary(summary: Summary, out: str, shards: int, how: HowToRun, calibration: Calibration | None) -> None:
    from poise.data.sources import BAD_SHARD

    images = summary.images - summary.failures[BAD_SHARD]  # whose rows stand for shards
    lines = [f"{counted(images, 'image')} in {summary.shards} of {counted(shards, 'shard')}, written to {out}"]
    if summary.labels:
        common = summary.labels.most_common(_SHOWN)
        more = len(summary.labels) - len(common)
        answers = ", ".join(f"{label} {number}" for label, number in common)
        lines.append(f"answers: {answers}{f' and {more} other labels' if more > 0 else ''}")
    if summary.abstained:
        lines.append(f"abstained: {100 * summary.abstained / max(1, sum(summary.labels.values())):.1f} %")
    if summary.failures:
        lines.append("failed: " + ", ".join(f"{number} {code}" for code, number in summary.failures.most_common()))
    for line in lines:
        remark(f"{line}.", quiet=how.quiet)
    if calibration is not None and summary.sample:
        watch = calibration.monitor()
        pairs = list(summary.sample)
        random.Random(0).shuffle(pairs)
        for confidence, match in pairs:
            watch.update(confidence, match)
        if watch.alarm or how.verbose:
            remark(f"{watch} (A sample of {len(pairs)} images in random order; see `poise monitor`.)")
    for name, problem in list(summary.problems.items())[:_SHOWN]:
        remark(f"the shard '{name}' is not done: {problem}")
    if summary.problems:
        remark(f"{counted(len(summary.problems), 'shard')} could not be read; --resume tries them again.")
    failed = sum(summary.failures.values())
    if summary.problems or failed:
        raise typer.Exit(NOTHING_DONE if summary.images <= failed else SOME_FAILED)


def _say_estimate(job: Job, shards: Sequence[Shard], how: HowToRun) -> None:
    from poise.jobs.estimate import estimate

    found = estimate(job, shards)
    workers = max(1, how.engine.actors)
    hours = found.seconds / workers / 3600
    about = "" if found.counted else "about "
    typer.echo(f"{about}{found.images:,.0f} images in {counted(len(shards), 'shard')}")
    typer.echo(f"{found.rate:,.1f} images/s by one worker like this process, measured on {found.sampled} images")
    typer.echo(f"{timedelta(seconds=round(found.seconds / workers))} with {counted(workers, 'worker')}")
    typer.echo(f"{found.bytes / 2**20:,.1f} MiB of parts")
    if how.price is not None:
        typer.echo(f"{hours * workers * how.price:,.2f} at {how.price:g} per worker and hour")
