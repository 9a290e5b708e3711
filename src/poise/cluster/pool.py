"""Tasks handed to processes on a Ray cluster: each makes what it needs once, and whoever is free gets the next task.

A process that dies costs time, not results: its task is done again by another one.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from poise.cluster.connection import connect
from poise.errors import InvalidOptionError, PoiseError, WorkersLostError

log = logging.getLogger(__name__)
TRIES = 3  # of a task whose process dies under it, and of a process that dies before its first task
_CPUS_EACH = 4  # of a process without a GPU, where nobody says how many there are to be
_PATIENCE = 0.5  # seconds between two looks at whether to stop
_LONG = 60  # seconds without any process before the user is told what is being waited for
_CANT_START = "Every machine needs the same version of poise and room in its memory for the model."
_CANT_WORK = "What is finished is kept. Often memory ran out: try fewer --actors or a smaller --batch-size."

Task = TypeVar("Task")


class Host:
    """What runs in each process of Ray's."""

    def __init__(self, make: Callable[[int], Any], threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # so that relative paths mean what they mean where the command was typed
            os.chdir(folder)
        self._make, self._threads = make, threads
        self._made: Any = None

    def start(self) -> None:
        """Make what the tasks need, once."""
        self._made = self._make(self._threads)

    def call(self, method: str, *arguments: Any) -> Any:
        """One task's answer."""
        return getattr(self._made, method)(*arguments)


@dataclass
class _Round(Generic[Task]):
    """One call of `Pool.run`: what is open, and who is doing what."""

    open: deque[tuple[int, Task]]
    busy: dict[Any, tuple[Any, tuple[int, Task] | None]] = field(default_factory=dict)  # no task: it is starting
    losses: Counter[int] = field(default_factory=Counter)
    since: float = field(default_factory=time.monotonic)  # when somebody last had a task
    warned: bool = False

    def working(self) -> int:
        """How many have a task."""
        return sum(task is not None for _, task in self.busy.values())


class Pool:
    """As many processes as the cluster has GPUs for (or CPUs); ``make(threads)`` gives the object that does the tasks.

    Args:
        make: called once in each process, with the number of threads it may use.
        address: of the cluster; "" starts a Ray on this machine alone.
        actors: number of processes; 0 = by what the cluster has.
        gpu: whether each process gets a GPU; None = where the cluster has any.
    """

    def __init__(
        self, make: Callable[[int], Any], *, address: str = "", actors: int = 0, gpu: bool | None = None
    ) -> None:
        if actors < 0:
            raise InvalidOptionError(
                f"actors is {actors}.", hint="Give the number of processes, or 0 for the cluster's."
            )
        self._ray = connect(address)
        totals = self._ray.cluster_resources()
        cpus, gpus = int(totals.get("CPU", 1)), int(totals.get("GPU", 0))
        self.gpus = gpus
        self.on_gpu = gpus > 0 if gpu is None else gpu
        self.size = max(1, actors or (gpus if self.on_gpu else cpus // _CPUS_EACH))
        needs = {"num_cpus": 1, "num_gpus": int(self.on_gpu), "scheduling_strategy": "SPREAD"}
        self._hosts = self._ray.remote(Host).options(**needs)
        self._arguments = (make, max(1, cpus // self.size), os.getcwd())
        self._idle: list[Any] = []
        self._failed_starts = 0

    def run(
        self,
        tasks: Sequence[Task],
        *,
        method: str = "work",
        arguments: Callable[[Task], tuple[Any, ...]] = lambda task: (task,),
        name: Callable[[Task], str] = str,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Task, Any]]:
        """Each task with its answer, as they come.

        Args:
            tasks: what is to be done.
            method: what is called of the object that ``make`` gave.
            arguments: what is sent for a task, made when a process is free for it, and again if that one dies.
            name: what a task is called in messages.
            check: called twice a second; raises to stop.
        """
        now = _Round(deque(enumerate(tasks)))
        try:
            while now.open or now.working():
                check()
                self._hand_out(now, method, arguments)
                ready, _ = self._ray.wait(list(now.busy), num_returns=1, timeout=_PATIENCE)
                for reference in ready:
                    host, entry = now.busy.pop(reference)
                    try:
                        answer = self._get(reference)
                    except self._ray.exceptions.RayError as error:
                        self._lose(now, entry, name, error)
                        continue
                    self._idle.append(host)
                    if entry is None:
                        self._failed_starts = 0
                    else:
                        yield entry[1], answer
        finally:
            for host, _ in now.busy.values():
                self._ray.kill(host)

    def _hand_out(self, now: _Round[Task], method: str, arguments: Callable[[Task], tuple[Any, ...]]) -> None:
        """Tasks only go to processes that are up: one for which the cluster has no room holds up nothing."""
        while self._idle and now.open:
            entry = now.open.popleft()
            host = self._idle.pop()
            now.busy[host.call.remote(method, *arguments(entry[1]))] = (host, entry)
        while len(now.busy) + len(self._idle) < min(self.size, len(now.open) + now.working()):
            host = self._hosts.remote(*self._arguments)
            now.busy[host.start.remote()] = (host, None)
        if now.working():
            now.since = time.monotonic()
        elif time.monotonic() - now.since > _LONG and not now.warned:
            now.warned = True
            log.warning("No worker has started for %d s: the cluster may be full. Free: %s.", _LONG, self._free())

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PoiseError):
                raise error.cause from None
            raise RuntimeError(str(error)) from error  # a fault in the code: once more would not help

    def _lose(
        self, now: _Round[Task], entry: tuple[int, Task] | None, name: Callable[[Task], str], error: Exception
    ) -> None:
        """Note a death. The task comes first again, until it has cost too many."""
        if entry is None:
            self._failed_starts += 1
            losses, what, hint = self._failed_starts, "while starting", _CANT_START
        else:
            now.open.appendleft(entry)
            now.losses[entry[0]] += 1
            losses, what, hint = now.losses[entry[0]], f"with {name(entry[1])}", _CANT_WORK
        log.warning("A worker died %s (%s); attempt %d of %d.", what, type(error).__name__, losses, TRIES)
        if losses >= TRIES:
            raise WorkersLostError(f"{TRIES} workers died {what}. Ray says: {_reason(error)}", hint=hint) from error

    def _free(self) -> str:
        free = self._ray.available_resources()
        return ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))


def _reason(error: Exception) -> str:
    """The telling line of what Ray says: the first, but under a traceback the last."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if any(line.startswith("Traceback") or "ray::" in line for line in lines) else 0].strip()
