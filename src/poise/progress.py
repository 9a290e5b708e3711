"""Progress on stderr: a bar with rate and time left on a terminal, and elsewhere a plain line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from poise.terminal import styled
from poise.text import printable

T = TypeVar("T")
EVERY = 30.0  # seconds between lines
FIRST = "first batch ..."  # instead of a rate, until there is one


class Rate(ProgressColumn):
    """Images per second since the start of the work."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self._before = done

    def render(self, task: Task) -> Text:
        """Return the rate so far, or that there is none yet."""
        return Text(_rate(int(task.completed) - self._before, task.elapsed or 0.0))


class TimeLeft(Rate):
    """The time left at that rate."""

    def render(self, task: Task) -> Text:
        """Return hours, minutes and seconds; nothing before the first batch is done."""
        done = task.completed - self._before
        if not done or not task.elapsed or not task.remaining:
            return Text("")
        return Text(f"{timedelta(seconds=round(task.remaining * task.elapsed / done))} left")


class _Note(ProgressColumn):
    """What is said beside the numbers."""

    def __init__(self, note: Callable[[], str]) -> None:
        super().__init__()
        self._note = note

    def render(self, task: Task) -> Text:
        """Return the note of now."""
        return Text(self._note())


def _rate(images: int, seconds: float) -> str:
    if not (images and seconds):
        return FIRST
    return f"{images / seconds:.1f} images/s" if images / seconds >= 0.1 else f"{seconds / images:.0f} s per image"


@contextmanager
def progress_bar(
    label: str, total: int, done: int = 0, *, quiet: bool = False, note: Callable[[], str] = str
) -> Iterator[Callable[[int], None]]:
    """Yield a function that adds a number of images to those that are done; ``done`` of them are from before.

    Args:
        label: of the bar.
        total: number of images; 0 if it is not known.
        done: images of an earlier attempt.
        quiet: show nothing.
        note: returns what is said beside the numbers.
    """
    if quiet:
        yield lambda images: None
    elif not sys.stderr.isatty():
        yield _Lines(label, total, done, note)
    else:
        label_column = TextColumn("{task.description}", markup=False)
        columns = (label_column, BarColumn(), MofNCompleteColumn(), Rate(done), TimeLeft(done), _Note(note))
        with Progress(*columns, console=Console(file=styled(sys.stderr)), transient=True) as bar:
            task = bar.add_task(printable(label), total=total or None, completed=done)
            yield lambda images: bar.update(task, advance=images)


def watched(outcomes: Iterable[T], total: int, *, quiet: bool = False) -> Iterator[T]:
    """Yield the same outcomes, and show progress on stderr; ``total`` is 0 if their number is not known."""
    with progress_bar("classified", total, quiet=quiet or total == 1) as advance:
        for outcome in outcomes:
            advance(1)
            yield outcome


class _Lines:
    """Prints how far the work is, at most every `EVERY` seconds."""

    def __init__(self, label: str, total: int, done: int, note: Callable[[], str] = str) -> None:
        self._note = note
        self._label, self._total, self._first, self._done = label, total, done, done
        self._began = self._printed = time.monotonic()

    def __call__(self, images: int) -> None:
        self._done += images
        now = time.monotonic()
        if now - self._printed < EVERY:
            return
        self._printed = now
        new, seconds = self._done - self._first, now - self._began
        minutes = (self._total - self._done) * seconds / new / 60 if new else 0.0
        left = f", {f'{minutes:.0f}' if minutes >= 1 else 'less than 1'} min left" if new and self._total else ""
        known = f"{self._done} of {self._total}" if self._total else str(self._done)
        note = f"; {text}" if (text := self._note()) else ""
        text = f"{self._label}: {known} images, {_rate(new, seconds)}{left}{note}"
        print(text, file=sys.stderr, flush=True)  # noqa: T201  stderr is where progress belongs
