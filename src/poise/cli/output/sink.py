"""Where the rows of `poise classify` go: stdout or a file, at the end or, as JSON lines, one by one."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import typer

from poise.cli.exit_codes import INTERRUPTED, NOTHING_DONE, SOME_FAILED
from poise.cli.output import result_rows
from poise.cli.output.row_file import partial
from poise.cli.output.sorted_images import SortedImages
from poise.cli.output.verbose import remark
from poise.errors import InvalidOptionError, PoiseError
from poise.files import storage_errors, write_atomic
from poise.results import Failure, Result
from poise.terminal import styled
from poise.text import counted

LINES = "jsonl"


class Sink:
    """Receives outcomes. JSON lines are written as they come; the other formats when `close` is called.

    Args:
        format: a name of `result_rows.RENDER`, or "jsonl".
        columns: what a row contains.
        path: the file; None for stdout.
        append: whether to keep the lines that the file has.
        sorting: where each image is put, too.
    """

    def __init__(
        self,
        format: str,
        columns: result_rows.Columns,
        path: Path | None,
        *,
        append: bool = False,
        sorting: SortedImages | None = None,
    ) -> None:
        self.format, self.columns, self.path, self.sorting = format, columns, path, sorting
        self.done = self.failed = 0
        self.decisions = Counter[tuple[str, str]]()  # methods with "answered", "abstained" or "unknown"
        self._outcomes: list[Any] = []  # of formats that are written at the end
        self._file: TextIO | None = None
        if format == LINES and path is not None:
            with storage_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace")

    def add(self, outcome: Any) -> None:
        """Take one outcome."""
        self.done += 1
        self.failed += isinstance(outcome, Failure)
        if self.sorting is not None and isinstance(outcome, Failure):
            self.sorting.add_failed(outcome)
        decided = self.columns.decided(outcome)
        for name, result in decided.items() if isinstance(decided, dict) else ():
            self.decisions[name, _decision(result)] += 1
            if self.sorting is not None:
                self.sorting.add(result)
        if self.format != LINES:
            self._outcomes.append(outcome)
            return
        text = result_rows.as_lines([outcome], self.columns)
        if self._file is None:
            _echo(text)
            return
        assert self.path is not None
        with storage_errors(self.path):
            self._file.write(text)
            self._file.flush()

    def close(self, *, complete: bool = True) -> None:
        """Write what is not written yet; the rows of a part of the images to a file with a name of its own."""
        if self.format == LINES:
            if self._file is not None:
                self._file.close()
            return
        rows = result_rows.RENDER[self.format](self._outcomes, self.columns)
        if self.path is not None:
            if not complete and (self.path.is_file() or not self.path.exists()):  # not for a device
                self.path = partial(self.path)
            write_atomic(self.path, rows if isinstance(rows, bytes) else rows.encode("utf-8", "backslashreplace"))
        elif isinstance(rows, str):
            _echo(rows, styled(sys.stdout) if self.format == "table" else None)

    def kept(self, *, resumable: bool) -> str:
        """Return where the rows of a run that was stopped are, and how to get the others."""
        if self.path is None:
            return ""
        if self.format != LINES:
            return f" Their rows are in {self.path}. A file of JSON lines (--format jsonl) could be resumed."
        return " Add --resume to continue." if resumable else ""

    def summary(self) -> str:
        """Return how many images were answered, and where the rows are."""
        counts = [
            f"{number} {what}" + (f" by {method}" if len(self.columns.methods) > 1 else "")
            for (method, what), number in sorted(self.decisions.items(), key=lambda item: _place(*item[0]))
        ]
        counts += [f"{self.failed} failed (the rows say why)"] if self.failed else []
        written = [f"written to {self.path}"] if self.path else []
        written += [f"sorted into {self.sorting.root}"] if self.sorting else []
        return f"{counted(self.done, 'image')}: {', '.join(counts) or 'nothing to do'}" + "; ".join(["", *written])


_DECISIONS = ("answered", "abstained", "unknown")  # in the order in which they are counted


def _place(method: str, what: str) -> tuple[str, int]:
    return method, _DECISIONS.index(what)


def _decision(result: Result) -> str:
    if result.rejected is not None:
        return "unknown"
    return "abstained" if result.decision == "abstain" else "answered"


def finished(path: Path | None, methods: list[str]) -> frozenset[str]:
    """Return the sources that have a row for each method in a file of JSON lines; a torn last line is cut off."""
    if path is None or not path.is_file():
        return frozenset()
    found: dict[str, set[str]] = {}
    whole = 0
    with path.open("rb") as file:
        for line in file:
            try:
                row = json.loads(line)
                source, method = str(row["source"]), str(row["method"])
            except (ValueError, TypeError, KeyError):
                if line.endswith(b"\n"):
                    raise InvalidOptionError(
                        f"'{path}' has a line that is not a row of results.", hint="Give the file of an earlier run."
                    ) from None
                break
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            if row.get("error") is None:  # images that failed are tried again
                found.setdefault(source, set()).add(method)
    with storage_errors(path), path.open("r+b") as file:
        file.truncate(whole)
    return frozenset(source for source, names in found.items() if names.issuperset(methods))


def write_rows(
    outcomes: Iterable[Any], total: int, sink: Sink, *, quiet: bool = False, resumable: bool = False
) -> None:
    """Write all outcomes, or those so far if the work stops early; ``resumable`` if the command has ``--resume``."""
    try:
        with sigterm_raises():
            for outcome in outcomes:
                sink.add(outcome)
    except (KeyboardInterrupt, PoiseError) as stop:  # finished rows are kept
        if sink.done or isinstance(stop, KeyboardInterrupt):
            sink.close(complete=False)
            remark(f"stopped after {sink.done} of {counted(total, 'image')}.{sink.kept(resumable=resumable)}")
        if isinstance(stop, PoiseError):
            raise
        raise typer.Exit(128 + signal.SIGTERM if isinstance(stop, Terminated) else INTERRUPTED) from None
    sink.close()
    if sink.path or sink.sorting or sink.failed or len({what for _, what in sink.decisions}) > 1:
        remark(f"{sink.summary()}.", quiet=quiet)
    if sink.failed:
        raise typer.Exit(NOTHING_DONE if sink.failed == sink.done else SOME_FAILED)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM stop the work as Ctrl-C does, so that finished rows are kept."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _echo(text: str, file: TextIO | None = None) -> None:
    """Print text; file names that are not UTF-8 are escaped."""
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"), file=file, nl=False)
