"""The batcher with fake work: groups, limits, deadlines, cancellation, failures and draining."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from typing import Any

import pytest

from poise.errors import DeadlineExceededError, LimitExceededError, QueueFullError, ServiceUnavailableError
from poise.serve.batcher import Batcher, BatchReport

SOON = 20.0  # seconds; everything here takes milliseconds, but a busy machine may pause


class Gate:
    """Work that records its batches and waits until it is let through."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []
        self.started, self.open = threading.Event(), threading.Event()

    def __call__(self, key: str, items: list[int]) -> Iterator[int]:
        self.batches.append((key, items))
        self.started.set()
        assert self.open.wait(SOON)
        return iter([item * 10 for item in items])


@pytest.fixture
def made() -> Iterator[Callable[..., Batcher[str, int, int]]]:
    batchers: list[Batcher[str, int, int]] = []
    gates: list[Gate] = []

    def make(work: Any, **options: Any) -> Batcher[str, int, int]:
        gates.extend([work] if isinstance(work, Gate) else [])
        batchers.append(Batcher(work, **{"capacity": 100, "wait": 0.0, **options}))
        batchers[-1].start()
        return batchers[-1]

    yield make
    for gate in gates:
        gate.open.set()
    for batcher in batchers:
        batcher.close()


def results(futures: list[Future[int]]) -> list[int]:
    return [future.result(SOON) for future in futures]


def busy(made: Any, **options: Any) -> tuple[Batcher[str, int, int], Gate, Future[int]]:
    """A batcher that computes item 0, so that all that is submitted now waits."""
    gate = Gate()
    batcher = made(gate, **options)
    first = batcher.submit("first", [0])[0]
    assert gate.started.wait(SOON)
    return batcher, gate, first


def test_items_of_one_key_are_computed_together_and_the_oldest_group_is_first(made: Any) -> None:
    batcher, gate, _ = busy(made)
    b, a = batcher.submit("b", [1]), batcher.submit("a", [2])
    b += batcher.submit("b", [3])
    gate.open.set()
    assert results(b) == [10, 30]
    assert results(a) == [20]
    assert gate.batches == [("first", [0]), ("b", [1, 3]), ("a", [2])]


def test_what_is_left_of_a_group_waits_behind_those_that_came_before_it(made: Any) -> None:
    batcher, gate, _ = busy(made, batch_items=1)
    futures = [batcher.submit(key, [item])[0] for key, item in (("a", 1), ("b", 2), ("a", 3), ("c", 4))]
    gate.open.set()
    assert results(futures) == [10, 20, 30, 40]
    assert gate.batches[1:] == [("a", [1]), ("b", [2]), ("a", [3]), ("c", [4])]


@pytest.mark.parametrize(("options", "cost"), [({"batch_cost": 8}, 4), ({"batch_items": 2}, 1)])
def test_a_batch_is_bounded_in_cost_and_items(made: Any, options: dict[str, int], cost: int) -> None:
    batcher, gate, _ = busy(made, **options)
    futures = batcher.submit("a", [1, 2, 3], cost=cost)
    gate.open.set()
    assert results(futures) == [10, 20, 30]
    assert [items for _, items in gate.batches[1:]] == [[1, 2], [3]]


def test_an_item_above_the_cost_of_a_batch_is_a_batch_of_its_own(made: Any) -> None:
    batcher = made(lambda key, items: items, batch_cost=4)
    assert results(batcher.submit("a", [1, 2], cost=50)) == [1, 2]


def test_an_item_waits_for_others_of_its_group(made: Any) -> None:
    reports: list[BatchReport] = []
    batcher = made(lambda key, items: items, wait=10 * SOON, batch_items=2, report=reports.append)
    futures = batcher.submit("a", [1])
    assert not wait(futures, timeout=0.05).done
    futures += batcher.submit("a", [2])  # the batch is full, so that it does not wait any longer
    assert results(futures) == [1, 2]
    batcher.close()
    assert [report.images for report in reports] == [2]


def test_a_full_queue_refuses_all_items_of_a_call_and_takes_them_later(made: Any) -> None:
    batcher, gate, first = busy(made, capacity=10)
    accepted = batcher.submit("a", [1, 2, 3], cost=3)
    with pytest.raises(QueueFullError) as caught:
        batcher.submit("a", [4], cost=1)
    assert caught.value.retry_after >= 1
    with pytest.raises(LimitExceededError, match="11"):
        batcher.submit("a", [4], cost=11)
    assert len(batcher) == 4
    gate.open.set()
    assert results([first, *accepted]) == [0, 10, 20, 30]
    assert results(batcher.submit("a", [4], cost=10)) == [40]


def test_a_cancelled_item_is_not_computed_and_makes_room_at_once(made: Any) -> None:
    batcher, gate, first = busy(made, capacity=3)
    kept, left = batcher.submit("a", [1]), batcher.submit("b", [2])
    assert left[0].cancel()
    assert not first.cancel()  # it runs
    kept += batcher.submit("c", [3])
    gate.open.set()
    assert results(kept) == [10, 30]
    with pytest.raises(CancelledError):
        left[0].result(SOON)
    assert [key for key, _ in gate.batches] == ["first", "a", "c"]


def test_an_item_is_not_computed_after_its_deadline(made: Any) -> None:
    batcher, gate, _ = busy(made)
    late = batcher.submit("a", [1], deadline=time.monotonic() + 0.01)
    kept = batcher.submit("a", [2], deadline=time.monotonic() + SOON)
    time.sleep(0.05)
    gate.open.set()
    with pytest.raises(DeadlineExceededError, match="deadline passed"):
        late[0].result(SOON)
    assert results(kept) == [20]
    assert gate.batches[1:] == [("a", [2])]


class Model:
    """Work that takes 0.3 s and 0.09 s per item, on a clock of its own."""

    def __init__(self) -> None:
        self.now, self.answered = 0.0, dict[int, float]()  # when each item was
        self.started, self.open = threading.Event(), threading.Event()

    def clock(self) -> float:
        return self.now

    def __call__(self, key: str, items: list[int]) -> list[int]:
        self.started.set()
        assert self.open.wait(SOON)
        self.now += self.seconds(len(items))
        self.answered |= dict.fromkeys(items, self.now)
        return items

    @staticmethod
    def seconds(items: int) -> float:
        return 0.3 + 0.09 * items


@pytest.mark.parametrize("one_key", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_under_overload_some_are_answered_in_time_and_nothing_is_computed_too_late(
    made: Any, one_key: bool, warm: bool
) -> None:
    """40 clients at once, each with four times what a single item takes; a full batch takes longer than that."""
    model, within = Model(), 4 * Model.seconds(1)
    batcher = made(model, capacity=1000, batch_items=16, clock=model.clock)
    model.open.set()
    if warm:  # batches of several sizes were measured before
        for number in (1, 4, 8):
            results(batcher.submit("warm", list(range(-number, 0)), cost=2))
    results(batcher.submit("warm", [-1], cost=2))
    model.open.clear()
    model.started.clear()
    first = batcher.submit("0", [0], cost=2, deadline=model.now + within)
    assert model.started.wait(SOON)
    arrived, accepted, refused = model.now, dict[int, Future[int]](), list[QueueFullError]()
    for item in range(1, 41):
        try:
            key = "0" if one_key else str(item)
            accepted[item] = batcher.submit(key, [item], cost=2, deadline=arrived + within)[0]
        except QueueFullError as error:
            refused.append(error)
    model.open.set()
    wait([*first, *accepted.values()], timeout=SOON)
    in_time = [item for item, time_ in model.answered.items() if item > 0 and time_ <= arrived + within]
    too_late = [item for item, time_ in model.answered.items() if item > 0 and time_ > arrived + within]
    assert len(in_time) >= 2
    assert len(too_late) <= 1  # the one that is tried when there is nothing else to do
    assert refused
    assert {error.code for error in refused} == {"queue_full"}
    assert all(future.exception() is None for item, future in accepted.items() if item in in_time)


def test_an_estimate_that_is_too_long_corrects_itself(made: Any) -> None:
    model = Model()
    model.open.set()
    batcher = made(model, clock=model.clock)
    model.seconds = lambda items: 100.0  # type: ignore[method-assign]
    results(batcher.submit("slow", [1]))
    model.seconds = lambda items: 0.1  # type: ignore[method-assign]
    for item in range(2, 40):  # each alone, with far less time than the slow one took
        assert results(batcher.submit("a", [item], deadline=model.now + 0.2)) == [item]
    batcher.close()


def test_retry_after_is_when_the_queue_will_be_empty(made: Any) -> None:
    model = Model()
    batcher = made(model, capacity=64, batch_cost=32, clock=model.clock)
    model.open.set()
    for number in (1, 4, 16, 1, 4, 16):
        results(batcher.submit("a", list(range(number)), cost=2))
    model.open.clear()
    model.started.clear()
    batcher.submit("a", [1], cost=2)
    assert model.started.wait(SOON)
    waiting = batcher.submit("a", list(range(31)), cost=2)
    with pytest.raises(QueueFullError) as caught:
        batcher.submit("a", [1], cost=2)
    began = model.now
    model.open.set()
    results(waiting)
    took = model.now - began
    assert took - 1 <= caught.value.retry_after <= took + 2  # it is rounded up


def test_one_bad_item_fails_alone(made: Any) -> None:
    def work(key: str, items: list[int]) -> Iterator[int]:
        for item in items:
            if item == 3:
                raise ValueError("bad item")
            yield item

    gate_open = threading.Event()
    batcher = made(lambda key, items: gate_open.wait(SOON) and list(work(key, items)), batch_items=8)
    futures = batcher.submit("a", list(range(8)))
    gate_open.set()
    with pytest.raises(ValueError, match="bad item"):
        futures[3].result(SOON)
    assert results(futures[:3] + futures[4:]) == [0, 1, 2, 4, 5, 6, 7]


def test_an_exception_that_is_yielded_belongs_to_one_item(made: Any) -> None:
    batcher = made(lambda key, items: [ValueError("bad item") if item == 1 else item for item in items])
    futures = batcher.submit("a", [0, 1, 2])
    with pytest.raises(ValueError, match="bad item"):
        futures[1].result(SOON)
    assert results([futures[0], futures[2]]) == [0, 2]


def test_work_that_forgets_an_item_does_not_hang_its_caller(made: Any) -> None:
    batcher = made(lambda key, items: [])
    with pytest.raises(Exception, match="was not answered"):
        batcher.submit("a", [1])[0].result(SOON)


def test_no_items_are_no_work(made: Any) -> None:
    batcher = made(lambda key, items: items)
    assert batcher.submit("a", []) == []
    assert results(batcher.submit("a", [1])) == [1]


@pytest.mark.parametrize("drain", [True, False])
def test_closing_computes_what_was_accepted_or_fails_it(made: Any, drain: bool) -> None:
    batcher, gate, first = busy(made)
    waiting = batcher.submit("a", [1, 2])
    batcher.stop()
    with pytest.raises(ServiceUnavailableError):
        batcher.submit("a", [3])
    closer = threading.Thread(target=batcher.close, kwargs={"drain": drain})
    closer.start()
    if not drain:
        wait(waiting, timeout=SOON)
    gate.open.set()
    closer.join(SOON)
    assert first.result(SOON) == 0  # it had begun
    if drain:
        assert results(waiting) == [10, 20]
    else:
        assert all(isinstance(future.exception(SOON), ServiceUnavailableError) for future in waiting)


def test_many_threads_get_their_own_answers(made: Any) -> None:
    batcher = made(lambda key, items: [int(key) * item for item in items], capacity=10_000, wait=0.001)
    answers: dict[int, list[int]] = {}

    def call(thread: int) -> None:
        answers[thread] = [batcher.submit(str(item % 3), [item])[0].result(SOON) for item in range(thread, 60)]

    threads = [threading.Thread(target=call, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert answers == {thread: [item * (item % 3) for item in range(thread, 60)] for thread in range(8)}
    assert len(batcher) == 0
