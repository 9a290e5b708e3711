"""SIGINT and SIGTERM: the first one ends the run where it is safe to stop, the second one at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from poise.errors import RunInterruptedError

STDERR = 2
NOTICE = b"\npoise: stopping after the chunk that is being computed; a second signal (Ctrl-C) stops at once.\n"


@contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Yield a function that raises `RunInterruptedError` if a signal has arrived, to be called where it is safe."""
    received: list[int] = []

    def receive(signum: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + signum)
        received.append(signum)
        with suppress(OSError):  # a log that is gone is no reason to stop at once; `print` is not safe in a handler
            os.write(STDERR, NOTICE)

    def check() -> None:
        if received:
            raise RunInterruptedError(received[0])

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
