from __future__ import annotations

import threading

import pytest
import torch

from poise.loading.overlap import flow

CPU = torch.device("cpu")


def test_answers_come_in_order_and_batches_without_views_have_none() -> None:
    found = list(
        flow(range(6), CPU, lambda n: None if n == 2 else torch.tensor(n), lambda n, views: (n, int(views) * 10))
    )
    assert found == [(n, None if n == 2 else (n, n * 10)) for n in range(6)]


def test_each_stage_has_a_thread_of_its_own() -> None:
    seen: dict[str, set[int]] = {"views": set(), "answer": set()}

    def views(n: int) -> torch.Tensor:
        seen["views"].add(threading.get_ident())
        return torch.tensor(n)

    def answer(n: int, views: torch.Tensor) -> int:
        seen["answer"].add(threading.get_ident())
        return n

    assert len(list(flow(range(5), CPU, views, answer))) == 5
    assert len(seen["views"]) == len(seen["answer"]) == 1
    assert not seen["views"] & seen["answer"]


def test_an_error_of_a_stage_reaches_the_caller() -> None:
    def answer(n: int, views: torch.Tensor) -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(flow(range(3), CPU, torch.tensor, answer))
