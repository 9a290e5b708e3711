"""Progress on stderr: a bar with rate and time left on a terminal, and elsewhere a plain line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from poise.terminal import styled
from poise.text import printable

EVERY = 30.0  # seconds between lines


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        """Return the current rate, or the final one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} images/s")


@contextmanager
def progress_bar(label: str, total: int, done: int = 0, *, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds a number of images to those that are done."""
    if quiet:
        yield lambda images: None
    elif not sys.stderr.isatty():
        yield _Lines(label, total, done)
    else:
        label_column = TextColumn("{task.description}", markup=False)
        columns = (label_column, BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        console = Console(file=styled(sys.stderr))
        with Progress(*columns, console=console, speed_estimate_period=120, transient=True) as bar:
            task = bar.add_task(printable(label), total=total, completed=done)
            yield lambda images: bar.update(task, advance=images)


class _Lines:
    """Prints how far the work is, at most every `EVERY` seconds."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._first, self._done = label, total, done, done
        self._began = self._printed = time.monotonic()

    def __call__(self, images: int) -> None:
        self._done += images
        now = time.monotonic()
        if now - self._printed < EVERY:
            return
        self._printed = now
        rate = (self._done - self._first) / (now - self._began)
        left = f", {(self._total - self._done) / rate / 60:.0f} min left" if rate else ""
        text = f"{self._label}: {self._done} of {self._total} images, {rate:.1f} images/s{left}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201  stderr is where progress belongs
