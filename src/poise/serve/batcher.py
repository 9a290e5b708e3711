"""A bounded queue that computes the items of many callers in batches. It knows nothing of models or HTTP.

Every item has a cost, and the limit is on the cost of all items that wait or run, not on their number. One thread
computes: it takes the group (items of one key) that has waited longest and waits a few milliseconds for more of it.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from poise.errors import DeadlineExceededError, LimitExceededError, PoiseError, QueueFullError, ServiceUnavailableError

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")
R = TypeVar("R")

_MEMORY = 0.9  # weight of earlier batches in the average time per unit of cost


@dataclass(eq=False)
class _QueueItem(Generic[K, P, R]):
    key: K
    payload: P
    cost: int
    deadline: float  # in seconds of time.monotonic
    future: Future[R] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class BatchReport:
    """What one batch took, in seconds."""

    images: int
    waited: tuple[float, ...]
    computed: float


class Batcher(Generic[K, P, R]):
    """Computes items in batches, in one thread.

    Args:
        work: yields one value or one exception for each payload of a batch, in order.
        capacity: cost of all items that may wait or run.
        batch_cost: cost of a batch; an item that costs more is a batch of its own.
        batch_items: items of a batch.
        wait: seconds that an item waits for others of its group.
        report: called after each batch.

    Example:
        >>> batcher = Batcher(lambda key, items: [key * item for item in items], capacity=10)
        >>> batcher.start()
        >>> [future.result() for future in batcher.submit(2, [3, 4])]
        [6, 8]
        >>> batcher.close()
    """

    def __init__(
        self,
        work: Callable[[K, list[P]], Iterable[R | Exception]],
        *,
        capacity: int,
        batch_cost: int = 256,
        batch_items: int = 64,
        wait: float = 0.005,
        report: Callable[[BatchReport], None] = lambda report: None,
    ) -> None:
        self.capacity, self._batch_cost, self._batch_items, self._wait = capacity, batch_cost, batch_items, wait
        self._work, self._report = work, report
        self._groups: dict[K, deque[_QueueItem[K, P, R]]] = {}
        self._changed = threading.Condition()
        self._used, self._items = 0, 0  # cost and number of the items that wait or run
        self._seconds = 0.0  # average time per unit of cost
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="poise-batcher", daemon=True)

    def __len__(self) -> int:
        return self._items

    def start(self) -> None:
        """Start the thread that computes."""
        self._thread.start()

    def submit(self, key: K, payloads: Sequence[P], *, cost: int = 1, deadline: float = math.inf) -> list[Future[R]]:
        """Queue all payloads or none of them; thread-safe.

        Args:
            key: items of one key may be computed together.
            payloads: what ``work`` is given.
            cost: of each payload.
            deadline: time (of `time.monotonic`) after which the items are no longer computed.

        Raises:
            LimitExceededError: The payloads cost more than the queue ever takes.
            QueueFullError: The queue is full; ``retry_after`` says when to try again.
            ServiceUnavailableError: The batcher was stopped.
        """
        items: list[_QueueItem[K, P, R]] = [_QueueItem(key, payload, cost, deadline) for payload in payloads]
        with self._changed:
            if self._stopped:
                raise ServiceUnavailableError("The server is shutting down.", hint="Ask another one.")
            self._admit(cost * len(items))
            self._items += len(items)
            if items:
                self._groups.setdefault(key, deque()).extend(items)
            self._changed.notify_all()
        for item in items:  # outside the lock: a future that is done calls at once
            item.future.add_done_callback(lambda _, item=item: self._release(item))  # type: ignore[misc]
        return [item.future for item in items]

    def stop(self) -> None:
        """Accept no more items; those that were accepted are computed."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self, *, drain: bool = True) -> None:
        """Stop, and wait until all accepted items are computed; without ``drain``, those that wait fail instead."""
        self.stop()
        if not drain:
            error = ServiceUnavailableError("The server was stopped before this image was classified.")
            for item in [item for group in self._waiting() for item in group]:
                if item.future.set_running_or_notify_cancel():
                    item.future.set_exception(error)
        if self._thread.is_alive():
            self._thread.join()

    def _waiting(self) -> list[list[_QueueItem[K, P, R]]]:
        with self._changed:
            groups = [list(group) for group in self._groups.values()]
            self._groups.clear()
        return groups

    def _admit(self, cost: int) -> None:
        if cost > self.capacity:
            raise LimitExceededError(
                f"The request costs {cost} (views x images x tuned methods), and the server takes {self.capacity}.",
                hint="Ask for fewer images, views or methods.",
                code="too_costly",
            )
        if self._used + cost > self.capacity:
            seconds = max(1, math.ceil(self._used * self._seconds))
            raise QueueFullError("The server's queue is full.", retry_after=seconds)
        self._used += cost

    def _release(self, item: _QueueItem[K, P, R]) -> None:
        """Forget an item that is done, failed or cancelled; the only place where its cost is given back."""
        with self._changed:
            self._used, self._items = self._used - item.cost, self._items - 1
            group = self._groups.get(item.key)
            if group and item in group:  # cancelled while it waited
                group.remove(item)
                if not group:
                    del self._groups[item.key]

    def _run(self) -> None:
        while (batch := self._take()) is not None:
            now = time.monotonic()
            for late in [item for item in batch if item.deadline < now]:
                if late.future.set_running_or_notify_cancel():
                    late.future.set_exception(DeadlineExceededError.after(now - late.arrived))
            batch = [item for item in batch if item.deadline >= now and item.future.set_running_or_notify_cancel()]
            if batch:
                self._compute(batch)
                self._account(batch, now)

    def _take(self) -> list[_QueueItem[K, P, R]] | None:
        """Wait for items, and remove the next batch from the queue; None when the batcher is stopped and empty."""
        with self._changed:
            while True:
                if not self._groups:
                    if self._stopped:
                        return None
                    self._changed.wait()
                    continue
                key, group = min(self._groups.items(), key=lambda pair: pair[1][0].arrived)
                left = group[0].arrived + self._wait - time.monotonic()
                most = max(1, min(self._batch_items, self._batch_cost // group[0].cost))
                if left > 0 and len(group) < most and not self._stopped:
                    self._changed.wait(left)
                    continue
                batch = [group.popleft() for _ in range(min(most, len(group)))]
                if not group:
                    del self._groups[key]
                return batch

    def _compute(self, batch: list[_QueueItem[K, P, R]]) -> None:
        """Compute a batch. If it fails as a whole, its items are computed one by one, so that one fails alone."""
        left = deque(batch)
        try:
            for outcome in self._work(batch[0].key, [item.payload for item in batch]):
                _settle(left.popleft().future, outcome)
            error: Exception = PoiseError("The image was not answered.", code="internal_error")
        except Exception as caught:
            error = caught
        if len(batch) == 1:
            for item in left:
                _settle(item.future, error)
        else:
            for item in left:
                self._compute([item])

    def _account(self, batch: list[_QueueItem[K, P, R]], started: float) -> None:
        seconds = time.monotonic() - started
        each = seconds / sum(item.cost for item in batch)
        self._seconds = _MEMORY * self._seconds + (1 - _MEMORY) * each if self._seconds else each
        self._report(BatchReport(len(batch), tuple(started - item.arrived for item in batch), seconds))


def _settle(future: Future[R], outcome: R | Exception) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
