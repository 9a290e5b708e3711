"""Calls of a worker, spread over a Ray cluster with Ray Data: each result once, in the order of completion.

An actor makes its worker once. One that dies is replaced, and its call is repeated by another. Calls and results are
small; what workers read and write does not pass through this process.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from poise.cluster.connection import connect
from poise.cores import available_cores
from poise.errors import InvalidOptionError, PoiseError, WorkersLostError

log = logging.getLogger(__name__)
C = TypeVar("C")
ATTEMPTS = 3  # at a call whose workers die, at starting a worker, and at a round in which nothing is finished
_CPUS_PER_WORKER = 4  # used to choose the number of workers on a cluster without GPUs
_MOST_BLOCKS = 20_000  # of Ray Data; with more calls, a block has several
_POLL_SECONDS = 0.5  # interval at which `check` is called
_START = -1  # in place of the number of a call
_END = object()
_START_HINT = "Every machine needs the same version of poise and enough memory for the model."
_CALL_HINT = "Finished results are kept. The usual cause is memory: try fewer --actors or a smaller --batch-size."


class Attempts:
    """A small actor that counts how often each call has begun, so that one that kills its workers is given up."""

    def __init__(self) -> None:
        self._begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Return how often this call has begun now."""
        self._begun[number] += 1
        return self._begun[number]

    def end(self, number: int) -> None:
        """Forget a call, because it ended."""
        del self._begun[number]


class Actor:
    """What runs in each worker process. Errors of calls are results, so that only dead processes are repeated."""

    def __init__(
        self, make: Callable[[int], Any], threads: int, folder: str, attempts: Any, most_starts: int, most_calls: int
    ) -> None:
        if os.path.isdir(folder):  # relative paths refer to the folder of the command
            os.chdir(folder)
        self._attempts, self._worker, self._most = attempts, None, most_calls
        self._error: Exception | None = None
        if self._begun(_START) > most_starts:
            self._error = WorkersLostError(f"{most_starts} workers died while starting.", hint=_START_HINT)
            return
        try:
            self._worker = make(min(threads, available_cores()))  # of a cluster whose machines differ
        except Exception as error:
            self._error = _portable(error)
        self._ended(_START)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Make the calls of a batch."""
        rows = zip(batch["number"], batch["call"], batch["name"], strict=True)
        return {"number": batch["number"], "result": [self._call(int(number), *row) for number, *row in rows]}

    def _call(self, number: int, call: bytes, name: str) -> bytes:
        if self._error is not None:
            return pickle.dumps((None, self._error))
        if self._begun(number) > self._most:
            lost = WorkersLostError(f"{self._most} workers died while processing {name}.", hint=_CALL_HINT)
            return pickle.dumps((None, lost))
        method, arguments = pickle.loads(call)
        try:
            result = pickle.dumps((getattr(self._worker, method)(*arguments), None))
        except Exception as error:
            result = pickle.dumps((None, _portable(error)))
        self._ended(number)
        return result

    def _begun(self, number: int) -> int:
        import ray

        try:
            return int(ray.get(self._attempts.begin.remote(number)))
        except ray.exceptions.RayError:  # it died with its machine, so that nobody counts
            return 1

    def _ended(self, number: int) -> None:
        self._attempts.end.remote(number)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled: one of poise as it is, another as its traceback."""
    return error if isinstance(error, PoiseError) else RuntimeError("".join(traceback.format_exception(error)))


class Stream:
    """Workers on a Ray cluster: ``actors`` of them, or one per GPU, or one per four CPU cores.

    Args:
        make: called once in each actor with its number of threads; returns the worker. Picklable.
        address: of the cluster; "" starts Ray on this machine.
        actors: number of workers; 0 = by the cluster's resources. If fewer fit, those do all calls.
        gpu: whether a worker gets a GPU; None = if the cluster has any.
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
        cpus, self.gpus = int(totals.get("CPU", 1)), int(totals.get("GPU", 0))
        self.on_gpu = self.gpus > 0 if gpu is None else gpu
        self.size = max(1, actors or (self.gpus if self.on_gpu else cpus // _CPUS_PER_WORKER))
        attempts = self._ray.remote(Attempts).options(num_cpus=0, max_restarts=-1).remote()
        self._arguments = (make, max(1, cpus // self.size), os.getcwd(), attempts, ATTEMPTS * self.size, ATTEMPTS)

    def run(
        self,
        calls: Sequence[C],
        *,
        method: str = "work",
        arguments: Callable[[C], tuple[Any, ...]] = lambda call: (call,),
        name: Callable[[C], str] = str,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[C, Any]]:
        """Yield each call with its result, in the order of completion.

        Args:
            calls: what is to be done.
            method: of the worker.
            arguments: of the method, for a call.
            name: of a call, for messages.
            check: called twice a second; raises an exception to stop.

        Raises:
            PoiseError: That of a call, or of making a worker.
            WorkersLostError: A call, or starting, has killed `ATTEMPTS` workers; or the cluster fails.
        """
        left, fruitless = dict(enumerate(calls)), 0
        while left:
            before = len(left)
            try:
                packed = [
                    {"number": number, "call": pickle.dumps((method, arguments(call))), "name": name(call)}
                    for number, call in left.items()
                ]
                for number, result in self._round(packed, check):
                    if number in left:  # a call that was repeated is finished once
                        yield left.pop(number), result
            except self._ray.exceptions.RayError as error:
                fruitless = fruitless + 1 if len(left) == before else 1
                log.warning("Workers died (%s); %d calls are left.", type(error).__name__, len(left))
                if fruitless >= ATTEMPTS:
                    raise WorkersLostError(
                        f"The cluster failed {ATTEMPTS} times while nothing was done. Ray reports: {_reason(error)}",
                        hint=_CALL_HINT,
                    ) from error

    def _round(self, packed: list[dict[str, Any]], check: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """Yield numbers and results of calls; raise Ray's error if actors died too often."""
        results: queue.Queue[Any] = queue.Queue(maxsize=1024)
        stop = threading.Event()
        pump = threading.Thread(target=self._pump, args=(packed, results, stop), daemon=True, name="poise-ray")
        check()
        pump.start()
        try:
            while True:
                try:
                    found = results.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    check()
                    continue
                if found is _END:
                    return
                if isinstance(found, BaseException):
                    raise found
                value, error = pickle.loads(found["result"])
                if error is not None:
                    raise error
                yield int(found["number"]), value
                check()
        finally:
            stop.set()

    def _pump(self, packed: list[dict[str, Any]], results: queue.Queue[Any], stop: threading.Event) -> None:
        """Run the calls with Ray Data; in a thread, so that signals are noticed while nothing is finished."""
        try:
            for row in self._dataset(packed).iter_rows():
                results.put(row)
                if stop.is_set():
                    return
            results.put(_END)
        except BaseException as error:
            results.put(error)

    def _dataset(self, packed: list[dict[str, Any]]) -> Any:
        import ray.data

        for logger in ("ray.data", "ray.data._internal"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)  # whose lines would come between ours
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        blocks = ray.data.from_items(packed, override_num_blocks=min(len(packed), _MOST_BLOCKS))
        return blocks.map_batches(
            Actor,
            fn_constructor_args=self._arguments,
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(self.size, len(packed))),
            num_cpus=1,
            num_gpus=int(self.on_gpu),
        )  # whose actors are restarted, and their calls repeated, without end: `Attempts` sets one


def _reason(error: Exception) -> str:
    """Return the most informative line of a Ray error: the first, or the last if there is a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if any(line.startswith("Traceback") or "ray::" in line for line in lines) else 0].strip()
