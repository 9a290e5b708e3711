"""SIGINT and SIGTERM: the first one ends the run at the next safe place, the second one at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from poise.errors import RunInterruptedError


class Interrupt:
    """While entered, remembers the first signal; ``check()`` raises it where it is safe to stop."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `RunInterruptedError` if a signal has come."""
        if self.signum is not None:
            raise RunInterruptedError(self.signum)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
