"""Processes that read images, so that decoding does not delay the threads that launch work on the GPU.

multiprocessing is not used, because it would run the caller's main module again in each process. A process runs one job
at a time: it receives the job on its standard input and writes the result to its standard output. A process ends when
its input is closed, also if the parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any, TypeVar, TypeVarTuple

from poise.errors import PoiseError, ReaderProcessError

if sys.platform == "linux":
    import fcntl

Ts = TypeVarTuple("Ts")
Z = TypeVar("Z")

_PIPE_SIZE = 1 << 20  # bytes, the limit on Linux: most images pass in one piece
_SHUTDOWN_TIMEOUT = 10.0  # seconds


class ReaderProcesses:
    """A thread-safe pool of child processes; each imports the module of ``preload`` before the pool is ready."""

    def __init__(self, processes: int, preload: Callable[..., object] | None = None) -> None:
        children = [_Child() for _ in range(processes)]
        self.close = weakref.finalize(self, _close, children)  # also runs at garbage collection and at exit
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in children:
            self._idle.put(child)
        if preload is not None:
            with ThreadPoolExecutor(processes) as threads:  # first in, first out: each process gets one job
                list(threads.map(lambda _: self.run(callable, preload), children))

    def run(self, work: Callable[[*Ts], Z], *args: *Ts) -> Z:
        """Return ``work(*args)``, computed by the next idle process; picklable, and nothing from the main module."""
        child = self._idle.get()
        try:
            value, error = child.run((work, args))
        finally:
            self._idle.put(child)
        if error is not None:
            raise error
        result: Z = value
        return result


class _Child:
    """A child process and the pipes to it."""

    def __init__(self) -> None:
        self._start()

    def run(self, job: object) -> tuple[Any, Exception | None]:
        """Return the result of a job, or its exception. A process that dies is replaced, and the job repeated once."""
        for _ in range(2):
            try:
                return self._run(job)
            except (EOFError, BrokenPipeError):
                self._restart()
        raise ReaderProcessError("Two processes died while reading this image.", hint="Is there enough memory?")

    def close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # a dead process leaves unread input
            self.jobs.close()

    def wait(self) -> None:
        self.close_input()
        try:
            self.process.wait(_SHUTDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.results.close()

    def _start(self) -> None:
        # In its own session (on Windows: group), because Ctrl-C is handled by the parent.
        session: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            session = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        process: Any = subprocess.Popen(
            [sys.executable, "-c", "from poise.loading.processes import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            **session,
        )
        self.process: subprocess.Popen[bytes] = process
        self.jobs: IO[bytes] = process.stdin
        self.results: IO[bytes] = process.stdout
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # over the user's quota; a smaller pipe is only slower
                fcntl.fcntl(self.results, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    def _run(self, job: object) -> tuple[Any, Exception | None]:
        _send(self.jobs, job)
        result: tuple[Any, Exception | None] = _receive(self.results)
        return result

    def _restart(self) -> None:
        self.process.kill()
        self.wait()
        self._start()
        try:
            self._run((int, ()))
        except (EOFError, BrokenPipeError):
            message = "The processes that read images end as soon as they are started."
            raise PoiseError(message, hint="Standard error says why.", code="readers_dont_start") from None


def _close(children: Sequence[_Child]) -> None:
    for child in children:
        child.close_input()
    for child in children:
        child.wait()


def serve() -> None:
    """Run the main loop of a child process."""
    jobs, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the output of libraries must not mix with the results
    while True:
        try:
            work, args = _receive(jobs)
        except EOFError:
            return
        result: tuple[Any, Exception | None]
        try:
            result = work(*args), None
        except Exception as error:
            result = None, error
        try:
            _send(results, result)
        except BrokenPipeError:
            os._exit(0)  # the parent has ended; closing the pipe would fail again


def _send(stream: IO[bytes], value: object) -> None:
    pickle.dump(value, stream, protocol=5)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    try:
        return pickle.load(stream)  # reads arrays into memory that they keep
    except pickle.UnpicklingError as error:  # the sender died while it was writing
        raise EOFError from error
