"""Work ahead of its turn: order, how far ahead, errors, leaving early, and stages."""

from __future__ import annotations

import threading

import pytest
import torch

from poise.loading import overlap
from poise.loading.overlap import map_ahead, run_stages


def test_order_is_kept_and_no_more_than_the_window_is_begun() -> None:
    begun: list[int] = []
    turns = [threading.Event() for _ in range(40)]

    def work(job: int) -> int:
        begun.append(job)
        if job % 3 == 0 and job + 1 < len(turns):
            turns[job + 1].wait(30)  # finishes after its successor
        turns[job].set()
        return job

    for asked, result in enumerate(map_ahead(work, range(40), threads=4, window=5)):
        assert result == asked
        assert len(begun) <= asked + 7


def test_a_failing_job_fails_where_its_turn_is() -> None:
    stream = map_ahead(lambda job: 1 / job, [1, 2, 0, 4], threads=2, window=4)
    assert next(stream) == 1
    assert next(stream) == 0.5
    with pytest.raises(ZeroDivisionError):
        next(stream)


def test_leaving_early_stops_the_rest() -> None:
    """One thread, held in its second job while the caller leaves: the third is never begun."""
    begun: list[int] = []
    entered, left, ended = threading.Event(), threading.Event(), threading.Event()

    def work(job: int) -> int:
        begun.append(job)
        if job == 1:
            entered.set()
            left.wait(30)
            ended.set()
        return job

    stream = map_ahead(work, range(1000), threads=1, window=3)
    assert next(stream) == 0
    assert entered.wait(30)
    stream.close()
    left.set()
    assert ended.wait(30)
    assert begun == [0, 1]


def test_stages_give_the_results_in_order() -> None:
    assert list(run_stages(range(6), torch.device("cpu"), lambda n: n + 1, lambda n: n * 10)) == [
        10, 20, 30, 40, 50, 60,
    ]  # fmt: skip


@pytest.fixture
def pretended_cuda(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Stages as on a GPU, without its streams: what is left are the threads."""

    class Plain:
        def __init__(self, value: object) -> None:
            self.value = value

        def take(self) -> object:
            return self.value

    monkeypatch.setattr(overlap, "_on_stream", lambda stage, device, work: lambda job: Plain(work(job)))
    return torch.device("cuda")


def test_each_stage_has_a_thread_of_its_own(pretended_cuda: torch.device) -> None:
    seen: dict[str, set[int]] = {"first": set(), "second": set()}

    def first(n: int) -> int:
        seen["first"].add(threading.get_ident())
        return n + 1

    def second(n: int) -> int:
        seen["second"].add(threading.get_ident())
        return n * 10

    assert list(run_stages(range(5), pretended_cuda, first, second)) == [10, 20, 30, 40, 50]
    assert len(seen["first"]) == len(seen["second"]) == 1
    assert not seen["first"] & seen["second"]


def test_an_error_of_a_stage_reaches_the_caller(pretended_cuda: torch.device) -> None:
    def fail(n: int) -> int:
        raise ValueError("no")

    for device in (pretended_cuda, torch.device("cpu")):
        with pytest.raises(ValueError, match="no"):
            list(run_stages(range(3), device, lambda n: n, fail))
