"""The options `--verbose` and `--quiet`: how much a command prints to stderr."""

from __future__ import annotations

import logging
import shutil
import sys
from typing import Annotated

import typer

from poise.errors import InvalidOptionError
from poise.text import printable, wrapped


class _ToStderr(logging.Handler):
    """Prints records as the commands print remarks."""

    def emit(self, record: logging.LogRecord) -> None:
        remark(self.format(record))


_HANDLER = _ToStderr()


def _set(ctx: typer.Context, asked: bool) -> bool:
    """Show or hide the messages of the logger "poise" and of all loggers below it."""
    _check_other(ctx, "quiet", asked)
    log = logging.getLogger("poise")
    if asked:
        log.addHandler(_HANDLER)
    else:
        log.removeHandler(_HANDLER)
    log.propagate = not asked
    log.setLevel(logging.INFO if asked else logging.NOTSET)
    return asked


def _set_quiet(ctx: typer.Context, asked: bool) -> bool:
    _check_other(ctx, "verbose", asked)
    return asked


def _check_other(ctx: typer.Context, other: str, asked: bool) -> None:
    if asked and ctx.params.get(other):
        raise InvalidOptionError("--quiet and --verbose contradict each other.", hint="Give one of them.")


Verbose = Annotated[
    bool, typer.Option(callback=_set, help="Print to stderr what is loaded, where, and the time of each stage.")
]
Quiet = Annotated[bool, typer.Option(callback=_set_quiet, help="Print no progress and no remarks; warnings stay.")]


def remark(text: str, *, quiet: bool = False) -> None:
    """Print one line that is not a result to stderr; a terminal shows it in several, broken between words."""
    if not quiet:
        line = f"poise: {printable(text)}"
        typer.echo(wrapped(line, shutil.get_terminal_size().columns) if sys.stderr.isatty() else line, err=True)
