"""Processes that read images, so that decoding never holds up the threads that feed an accelerator.

Not multiprocessing, which would run the caller's main module again in each process. A process runs one job at a time:
the job arrives on its standard input, the result leaves on its standard output, arrays beside the pickle so that they
are copied once. A process ends when its input does, also where the parent was killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any, ParamSpec, Protocol, TypeVar

from poise.errors import PoiseError, ReaderProcessError

if sys.platform == "linux":
    import fcntl

P = ParamSpec("P")
Z = TypeVar("Z")

_COUNT = struct.Struct("<Q")
_ALIGNED = 64  # bytes; arrays that start elsewhere are slower to read
_PIPE = 1 << 20  # bytes, Linux's limit: an image passes in one piece, and its reader wakes up once
_SHUTDOWN_TIMEOUT = 10.0  # seconds


class ReaderProcesses:
    """A pool of child processes; any thread may have work done by the next free one."""

    def __init__(self, processes: int) -> None:
        self._children = [_Child() for _ in range(processes)]
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)
        self.close = weakref.finalize(self, _end, self._children)  # also when forgotten, or at the end of the program

    def run(self, work: Callable[P, Z], *args: P.args, **kwargs: P.kwargs) -> Z:
        """The result of ``work``, or the error that it raised; all of it picklable, and not from the main module.

        Raises:
            ReaderProcessError: Two processes died over this.
            PoiseError: No process can be started.
        """
        child = self._idle.get()
        try:
            value, error = self._ask(child, (work, args, kwargs))
        finally:
            self._idle.put(child)
        if error is not None:
            raise error
        result: Z = value
        return result

    def warm(self, work: Callable[..., object]) -> None:
        """Wait until every process has imported what ``work`` needs."""
        count = len(self._children)
        with ThreadPoolExecutor(count) as threads:  # the next idle process is the one that has waited longest
            list(threads.map(lambda _: self.run(callable, work), range(count)))

    def _ask(self, child: _Child, job: object) -> tuple[Any, Exception | None]:
        for _ in range(2):
            try:
                return child.ask(job)
            except (EOFError, BrokenPipeError):
                child.restart()
        raise ReaderProcessError("Two processes died while reading this image.", hint="Is there enough memory?")

    def __enter__(self) -> ReaderProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.hang_up()
    for child in children:
        child.end()


class _Child:
    def __init__(self) -> None:
        self.process = _start()

    def ask(self, job: object) -> tuple[Any, Exception | None]:
        _send(self.process.stdin, job)
        answer: tuple[Any, Exception | None] = _receive(self.process.stdout)
        return answer

    def restart(self) -> None:
        self.process.kill()
        self.end()
        self.process = _start()
        try:
            self.ask((int, (), {}))
        except (EOFError, BrokenPipeError):
            message = "The processes that read images end as soon as they are started."
            raise PoiseError(message, hint="Standard error says why.", code="readers_dont_start") from None

    def hang_up(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # what a dead process was still to read
            self.process.stdin.close()

    def end(self) -> None:
        self.hang_up()
        try:
            self.process.wait(_SHUTDOWN_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


class _Pipes(Protocol):
    """A `subprocess.Popen` with both pipes."""

    stdin: IO[bytes]
    stdout: IO[bytes]

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


def _start() -> _Pipes:
    # In a session (on Windows: a group) of its own, as Ctrl-C is the parent's to handle.
    apart: dict[str, Any] = {"start_new_session": True}
    if sys.platform == "win32":
        apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    process: Any = subprocess.Popen(
        [sys.executable, "-c", "from poise.loading.processes import serve; serve()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        **apart,
    )
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # beyond the user's allowance; a smaller pipe is only slower
            fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, _PIPE)
    piped: _Pipes = process
    return piped


def serve() -> None:
    """The main loop of a child process."""
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    while True:
        try:
            work, args, kwargs = _receive(jobs)
        except EOFError:
            return
        answer: tuple[Any, Exception | None]
        try:
            answer = work(*args, **kwargs), None
        except Exception as problem:
            answer = None, problem
        try:
            _send(answers, answer)
        except BrokenPipeError:
            os._exit(0)  # nobody is there to hear it; closing the pipe would only fail again


def _send(to: IO[bytes], value: object) -> None:
    """The number of parts, their sizes, then the parts: the pickle and the arrays beside it."""
    arrays: list[pickle.PickleBuffer] = []
    parts: list[Any] = [pickle.dumps(value, protocol=5, buffer_callback=arrays.append)]
    parts += [array.raw() for array in arrays]
    sizes = [memoryview(part).nbytes for part in parts]
    to.write(b"".join(map(_COUNT.pack, [len(sizes), *sizes])))
    for part, size in zip(parts, sizes, strict=True):
        to.write(part)
        to.write(bytes(-size % _ALIGNED))
    to.flush()


def _receive(source: IO[bytes]) -> Any:
    (count,) = _COUNT.unpack(_exactly(source, _COUNT.size))
    sizes = struct.unpack(f"<{count}Q", _exactly(source, count * _COUNT.size))
    body = _exactly(source, sum(size + -size % _ALIGNED for size in sizes))
    parts, start = [], 0
    for size in sizes:
        parts.append(body[start : start + size])
        start += size + -size % _ALIGNED
    return pickle.loads(parts[0], buffers=parts[1:])


def _exactly(source: IO[bytes], size: int) -> memoryview:
    body = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        got = source.readinto(body[filled:])  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        filled += got
    return body
