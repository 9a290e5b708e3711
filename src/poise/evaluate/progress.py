"""The progress bar: on stderr, only on a terminal, with rate and time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    """Images per second."""

    def render(self, task: Task) -> Text:
        """Return the current rate, or the final one."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} images/s")


@contextmanager
def progress_bar(label: str, total: int, done: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds a number of images to the bar; it does nothing without a terminal."""
    if not sys.stderr.isatty():
        yield lambda images: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=120) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda images: bar.update(task, advance=images)
