"""A bounded queue that computes the items of many callers in batches. It knows nothing of models or HTTP.

Every item has a cost, and the limit is on the cost of all items that wait or run, not on their number. One thread
computes: it takes the group (items of one key) that has waited longest and waits a few milliseconds for more of it.

Under overload some items are answered in time instead of all of them too late: from the times of the last batches it is
estimated how long the next ones take. Items that would not be computed before their deadline are refused, a batch is
made so small that its items are in time, and an item whose time has become too short leaves its place to others. An
estimate that is too long corrects itself: with nothing else to do, an item is computed whatever the estimate.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from poise.errors import DeadlineExceededError, LimitExceededError, PoiseError, QueueFullError, ServiceUnavailableError
from poise.serve.batch_times import BatchTimes

K = TypeVar("K", bound=Hashable)
P = TypeVar("P")
R = TypeVar("R")

_MARGIN = 1.5  # a batch of several items is so small that it is in time even if it takes this much longer


@dataclass(eq=False)
class _QueueItem(Generic[K, P, R]):
    key: K
    payload: P
    cost: int
    deadline: float  # a time of the clock
    arrived: float
    future: Future[R] = field(default_factory=Future)


_Items = list[_QueueItem[K, P, R]]


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
        clock: the time in seconds.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.capacity, self._batch_cost, self._batch_items, self._wait = capacity, batch_cost, batch_items, wait
        self._work, self._report, self._clock = work, report, clock
        self._groups: dict[K, deque[_QueueItem[K, P, R]]] = {}
        self._changed = threading.Condition()
        self._used, self._items = 0, 0  # cost and number of the items that wait or run
        self._times = BatchTimes()
        self._running, self._started = 0, 0.0  # cost of the batch that is computed, and since when
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="poise-batcher", daemon=True)

    def __len__(self) -> int:
        return self._items

    @property
    def cost(self) -> int:
        """The cost of all items that wait or run."""
        return self._used

    def start(self) -> None:
        """Start the thread that computes."""
        self._thread.start()

    def submit(self, key: K, payloads: Sequence[P], *, cost: int = 1, deadline: float = math.inf) -> list[Future[R]]:
        """Queue all payloads or none of them; thread-safe.

        Args:
            key: items of one key may be computed together.
            payloads: what ``work`` is given.
            cost: of each payload.
            deadline: time of the clock until which the items must be computed.

        Raises:
            LimitExceededError: The payloads cost more than the queue ever takes.
            QueueFullError: The queue is full, or too long for the deadline; ``retry_after`` says when to try again.
            ServiceUnavailableError: The batcher was stopped.
        """
        now = self._clock()
        items: list[_QueueItem[K, P, R]] = [_QueueItem(key, payload, cost, deadline, now) for payload in payloads]
        with self._changed:
            if self._stopped:
                raise ServiceUnavailableError("The server is shutting down.", hint="Ask another one.")
            self._admit(cost, len(items), deadline - now)
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

    def _admit(self, each: int, items: int, seconds: float) -> None:
        cost = each * items
        if cost > self.capacity:
            raise LimitExceededError(
                f"The request costs {cost} (views x images x tuned methods), and the server takes {self.capacity}.",
                hint="Ask for fewer images, views or methods.",
                code="too_costly",
            )
        if self._used + cost > self.capacity:
            raise _full("The server's queue is full.", self._left(each, 0))
        if self._used and (late := self._left(each, cost) - seconds) > 0:
            raise _full(f"The server's queue is too long for an answer within {seconds:.3g} s.", late)
        self._used += cost

    def _left(self, each: int, more: int) -> float:
        """Return the estimated seconds until all items are computed, and some of cost ``each`` that cost ``more``."""
        running = max(0.0, self._times.of(self._running) - (self._clock() - self._started)) if self._running else 0.0
        full = self._most(each) * each
        waiting = sum(item.cost for group in self._groups.values() for item in group)
        batches, rest = divmod(waiting + more, full)
        return running + batches * self._times.of(full) + self._times.of(rest)

    def _most(self, each: int) -> int:
        """Return the number of items of this cost in a full batch."""
        return max(1, min(self._batch_items, self._batch_cost // each))

    def _release(self, item: _QueueItem[K, P, R]) -> None:
        """Forget an item that is done, failed or cancelled; the only place where its cost is given back."""
        with self._changed:
            self._used, self._items = self._used - item.cost, self._items - 1
            self._remove(item)  # if it was cancelled while it waited

    def _remove(self, item: _QueueItem[K, P, R]) -> None:
        group = self._groups.get(item.key)
        if group and item in group:
            group.remove(item)
            if not group:
                del self._groups[item.key]

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            batch, late = taken
            for item in late:
                if item.future.set_running_or_notify_cancel():
                    item.future.set_exception(DeadlineExceededError.after(self._clock() - item.arrived))
            batch = [item for item in batch if item.future.set_running_or_notify_cancel()]
            if batch:
                with self._changed:
                    self._running, self._started = sum(item.cost for item in batch), self._clock()
                self._compute(batch)
                self._account(batch)

    def _take(self) -> tuple[_Items[K, P, R], _Items[K, P, R]] | None:
        """Wait for items, and remove some from the queue: the next batch, or those that are too late for one.

        Returns:
            The batch and those that are too late; None when the batcher is stopped and empty.
        """
        with self._changed:
            while True:
                if late := self._take_late():
                    return [], late
                if not self._groups:
                    if self._stopped:
                        return None
                    self._changed.wait()
                    continue
                key, group = min(self._groups.items(), key=lambda pair: pair[1][0].arrived)
                left = group[0].arrived + self._wait - self._clock()
                most = self._most(group[0].cost)
                if left > 0 and len(group) < most and not self._stopped:
                    self._changed.wait(left)
                    continue
                batch = [group.popleft() for _ in range(self._in_time(group, most))]
                if not group:
                    del self._groups[key]
                return batch, []

    def _take_late(self) -> _Items[K, P, R]:
        """Remove the items that can't be computed in time; with nothing else to do, one of them is tried."""
        now = self._clock()
        items = [item for group in self._groups.values() for item in group]
        late = [item for item in items if now + self._times.of(item.cost) > item.deadline]
        if late and len(late) == len(items):
            tried = max(late, key=lambda item: item.deadline)
            late = [item for item in late if item is not tried or item.deadline < now]
        for item in late:
            self._remove(item)
        return late

    def _in_time(self, group: deque[_QueueItem[K, P, R]], most: int) -> int:
        """Return how many of a group's first items can be computed together before the first of their deadlines."""
        now, due = self._clock(), math.inf
        for number, item in enumerate(itertools.islice(group, most), 1):
            due = min(due, item.deadline)
            if now + _MARGIN * self._times.of(number * item.cost) > due:
                return max(1, number - 1)
        return min(most, len(group))

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

    def _account(self, batch: list[_QueueItem[K, P, R]]) -> None:
        with self._changed:
            seconds = self._clock() - self._started
            self._times.add(self._running, seconds)
            self._running = 0
        self._report(BatchReport(len(batch), tuple(self._started - item.arrived for item in batch), seconds))


def _full(problem: str, seconds: float) -> QueueFullError:
    return QueueFullError(problem, retry_after=max(1, math.ceil(seconds)))


def _settle(future: Future[R], outcome: R | Exception) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
