"""The terminal: text that is printed can't control it, whoever prints it."""

from __future__ import annotations

import codecs
import io
import re
import sys
from typing import TextIO

from poise.text import printable

# Progress bars of other packages (tqdm) redraw their line, and move up over the bars below, in writes of their own.
_REDRAW = re.compile(r"\r|(?:\n|\x1b\[A)+\Z")


class Screen(io.TextIOWrapper):
    """A stream that escapes all control characters but line ends and tabs."""

    def __init__(self, stream: io.TextIOWrapper) -> None:
        ascii_only = codecs.lookup(stream.encoding).name == "ascii"  # click would write UTF-8 past this stream
        super().__init__(
            stream.buffer,
            encoding="utf-8" if ascii_only else stream.encoding,
            errors="backslashreplace",  # names of files may contain any bytes
            line_buffering=stream.line_buffering,
            write_through=True,
        )
        self.unguarded = stream

    def write(self, text: str) -> int:
        """Write text without control characters."""
        redraw = _REDRAW.match(text)
        start = redraw.end() if redraw else 0
        super().write(text[:start] + "\n".join(map(_line, text[start:].split("\n"))))
        return len(text)


def _line(text: str) -> str:
    return "\t".join(map(printable, text.split("\t")))


def guard() -> None:
    """Let everything that this process prints pass through a `Screen`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not isinstance(stream, Screen):
            stream.reconfigure(errors="backslashreplace")
            setattr(sys, name, Screen(stream))


def styled(stream: TextIO) -> TextIO:
    """Return where rich's own control sequences may be written; the text between them must be `printable`."""
    return stream.unguarded if isinstance(stream, Screen) else stream
