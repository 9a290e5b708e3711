"""The option `--verbose`: what is loaded, on which device, and how long each stage takes, on stderr."""

from __future__ import annotations

import logging
from typing import Annotated

import typer


class _ToStderr(logging.Handler):
    """Prints records as the commands print remarks."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"poise: {self.format(record)}", err=True)


_HANDLER = _ToStderr()


def _set(asked: bool) -> bool:
    """Show or hide the messages of the logger "poise" and of all loggers below it."""
    log = logging.getLogger("poise")
    if asked:
        log.addHandler(_HANDLER)
    else:
        log.removeHandler(_HANDLER)
    log.propagate = not asked
    log.setLevel(logging.INFO if asked else logging.NOTSET)
    return asked


Verbose = Annotated[
    bool,
    typer.Option("--verbose", callback=_set, help="Print to stderr what is loaded, where, and the time of each stage."),
]
