"""A pool of worker processes on a Ray cluster. Each worker is set up once; idle workers receive the next task.

If a worker dies, another one repeats its task, so no result is lost.
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
MAX_ATTEMPTS = 3  # attempts at a task whose workers die, and at starting a worker
_CPUS_PER_WORKER = 4  # used to choose the number of workers on a cluster without GPUs
_POLL_SECONDS = 0.5  # interval at which `check` is called
_WARN_SECONDS = 60  # time without a running worker after which the user is warned
_START_HINT = "Every machine needs the same version of poise and enough memory for the model."
_TASK_HINT = "Finished results are kept. The usual cause is memory: try fewer --actors or a smaller --batch-size."

Task = TypeVar("Task")


class WorkerActor:
    """The Ray actor that runs in each worker process."""

    def __init__(self, make: Callable[[int], Any], threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # relative paths refer to the folder of the command
            os.chdir(folder)
        self._make, self._threads = make, threads
        self._worker: Any = None

    def start(self) -> None:
        """Create the object that processes the tasks."""
        self._worker = self._make(self._threads)

    def call(self, method: str, *arguments: Any) -> Any:
        """Process one task and return its result."""
        return getattr(self._worker, method)(*arguments)


@dataclass
class _RunState(Generic[Task]):
    """State of one call of `Pool.run`."""

    queue: deque[tuple[int, Task]]
    pending: dict[Any, tuple[Any, tuple[int, Task] | None]] = field(default_factory=dict)  # task None: starting
    losses: Counter[int] = field(default_factory=Counter)  # workers that died, per task
    last_active: float = field(default_factory=time.monotonic)  # last time at which a worker had a task
    warned: bool = False

    def active(self) -> int:
        """Return the number of workers that have a task."""
        return sum(task is not None for _, task in self.pending.values())


class Pool:
    """Worker processes on a Ray cluster: ``actors`` of them, or one per GPU, or one per four CPU cores.

    ``make`` is called once in each worker with its number of threads and returns the object that processes the tasks.
    A worker gets a GPU if ``gpu`` is True, or None and the cluster has any.
    """

    def __init__(
        self, make: Callable[[int], Any], *, address: str = "", actors: int = 0, gpu: bool | None = None
    ) -> None:
        if actors < 0:
            raise InvalidOptionError(
                f"actors is {actors}.", hint="Use a positive number, or 0 to choose it from the cluster's resources."
            )
        self._ray = connect(address)
        totals = self._ray.cluster_resources()
        cpus, gpus = int(totals.get("CPU", 1)), int(totals.get("GPU", 0))
        self.gpus = gpus
        self.on_gpu = gpus > 0 if gpu is None else gpu
        self.size = max(1, actors or (gpus if self.on_gpu else cpus // _CPUS_PER_WORKER))
        resources = {"num_cpus": 1, "num_gpus": int(self.on_gpu), "scheduling_strategy": "SPREAD"}
        self._actors = self._ray.remote(WorkerActor).options(**resources)
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
        """Yield each task with its result, in the order of completion.

        A task is processed by ``method`` of the worker's object, with ``arguments(task)``. ``check`` is called twice a
        second and raises an exception to stop the run.
        """
        state = _RunState(deque(enumerate(tasks)))
        try:
            while state.queue or state.active():
                check()
                self._dispatch(state, method, arguments)
                ready, _ = self._ray.wait(list(state.pending), num_returns=1, timeout=_POLL_SECONDS)
                for reference in ready:
                    actor, entry = state.pending.pop(reference)
                    try:
                        result = self._get(reference)
                    except self._ray.exceptions.RayError as error:
                        self._handle_death(state, entry, name, error)
                        continue
                    self._idle.append(actor)
                    if entry is None:
                        self._failed_starts = 0
                    else:
                        yield entry[1], result
        finally:
            for actor, _ in state.pending.values():
                self._ray.kill(actor)

    def _dispatch(self, state: _RunState[Task], method: str, arguments: Callable[[Task], tuple[Any, ...]]) -> None:
        """Send tasks to idle workers and start more workers; a worker gets no task before it has started."""
        while self._idle and state.queue:
            entry = state.queue.popleft()
            actor = self._idle.pop()
            state.pending[actor.call.remote(method, *arguments(entry[1]))] = (actor, entry)
        while len(state.pending) + len(self._idle) < min(self.size, len(state.queue) + state.active()):
            actor = self._actors.remote(*self._arguments)
            state.pending[actor.start.remote()] = (actor, None)
        if state.active():
            state.last_active = time.monotonic()
        elif time.monotonic() - state.last_active > _WARN_SECONDS and not state.warned:
            state.warned = True
            log.warning("No worker started in %d s: the cluster may be full. Free: %s.", _WARN_SECONDS, self._free())

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PoiseError):
                raise error.cause from None
            raise RuntimeError(str(error)) from error  # an error in the code, so another attempt would not help

    def _handle_death(
        self, state: _RunState[Task], entry: tuple[int, Task] | None, name: Callable[[Task], str], error: Exception
    ) -> None:
        """Put the task of a dead worker back at the front of the queue, or raise after too many attempts."""
        if entry is None:
            self._failed_starts += 1
            losses, activity, hint = self._failed_starts, "while starting", _START_HINT
        else:
            state.queue.appendleft(entry)
            state.losses[entry[0]] += 1
            losses, activity, hint = state.losses[entry[0]], f"while processing {name(entry[1])}", _TASK_HINT
        log.warning("A worker died %s (%s); attempt %d of %d.", activity, type(error).__name__, losses, MAX_ATTEMPTS)
        if losses >= MAX_ATTEMPTS:
            message = f"{MAX_ATTEMPTS} workers died {activity}. Ray reports: {_reason(error)}"
            raise WorkersLostError(message, hint=hint) from error

    def _free(self) -> str:
        free = self._ray.available_resources()
        return ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))


def _reason(error: Exception) -> str:
    """Return the most informative line of a Ray error: the first, or the last if there is a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if any(line.startswith("Traceback") or "ray::" in line for line in lines) else 0].strip()
