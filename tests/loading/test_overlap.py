"""Mapping ahead of time: order, window, errors, early exit, and overlapping stages."""

from __future__ import annotations

import threading

import pytest
import torch

from poise.loading import overlap
from poise.loading.overlap import map_ahead, run_stages


def test_results_are_in_order_and_at_most_the_window_is_started() -> None:
    started: list[int] = []
    turns = [threading.Event() for _ in range(40)]

    def work(job: int) -> int:
        started.append(job)
        if job % 3 == 0 and job + 1 < len(turns):
            turns[job + 1].wait(30)  # finishes after its successor
        turns[job].set()
        return job

    for number, result in enumerate(map_ahead(work, range(40), threads=4, window=5)):
        assert result == number
        assert len(started) <= number + 7


def test_the_error_of_a_job_is_raised_in_its_place() -> None:
    stream = map_ahead(lambda job: 1 / job, [1, 2, 0, 4], threads=2, window=4)
    assert next(stream) == 1
    assert next(stream) == 0.5
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_closing_the_iterator_cancels_the_remaining_jobs() -> None:
    """One thread waits in its second job while the iterator is closed: the third job is never started."""
    started: list[int] = []
    entered, closed, ended = threading.Event(), threading.Event(), threading.Event()

    def work(job: int) -> int:
        started.append(job)
        if job == 1:
            entered.set()
            closed.wait(30)
            ended.set()
        return job

    stream = map_ahead(work, range(1000), threads=1, window=3)
    assert next(stream) == 0
    assert entered.wait(30)
    stream.close()
    closed.set()
    assert ended.wait(30)
    assert started == [0, 1]


def test_stages_yield_results_in_order() -> None:
    assert list(run_stages(range(6), torch.device("cpu"), lambda n: n + 1, lambda n: n * 10)) == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]


@pytest.fixture
def simulated_cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Stages in threads as on a GPU, without CUDA streams."""
    monkeypatch.setattr(overlap, "_on_stream", lambda stage, device, work: work)
    monkeypatch.setattr(overlap, "_wait", lambda result, device: result)
    return torch.device("cuda")


def test_each_stage_has_its_own_thread(simulated_cuda: torch.device) -> None:
    seen: dict[str, set[int]] = {"first": set(), "second": set()}

    def first(n: int) -> int:
        seen["first"].add(threading.get_ident())
        return n + 1

    def second(n: int) -> int:
        seen["second"].add(threading.get_ident())
        return n * 10

    assert list(run_stages(range(5), simulated_cuda, first, second)) == [10, 20, 30, 40, 50]
    assert len(seen["first"]) == len(seen["second"]) == 1
    assert not seen["first"] & seen["second"]


def test_errors_of_a_stage_are_raised(simulated_cuda: torch.device) -> None:
    def fail(n: int) -> int:
        raise ValueError("no")

    for device in (simulated_cuda, torch.device("cpu")):
        with pytest.raises(ValueError, match="no"):
            list(run_stages(range(3), device, lambda n: n, fail))
