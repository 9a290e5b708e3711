"""Streams that need the text tower one after the other, moved along together so that they share its passes.

A stream is a generator: it asks, is sent the answer, and ends with its result.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.types import Prompt

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """What a stream wants of the text tower: features of contexts [P, M, E], or gradients for cotangents of these."""

    context: Tensor
    cotangent: Tensor | None = None  # [P, C, D]


Asking = Generator[Ask, Tensor, T]  # asks, is sent the answer, and ends with T


def answer_together(streams: Sequence[Asking[T]], texts: ClassTexts) -> list[T]:
    """Each stream's end. What they ask for at the same time goes through the text tower together."""
    ends: dict[int, T] = {}
    asked = {number: ask for number, stream in enumerate(streams) if (ask := _go_on(stream, None, number, ends))}
    while asked:
        answers: dict[int, Tensor] = {}
        for gradients in (False, True):
            wanted = {number: ask for number, ask in asked.items() if (ask.cotangent is not None) == gradients}
            if wanted:
                parts = _answers(list(wanted.values()), texts).split([len(ask.context) for ask in wanted.values()])
                answers.update(zip(wanted, parts, strict=True))
        asked = {n: ask for n, answer in answers.items() if (ask := _go_on(streams[n], answer, n, ends))}
    return [ends[number] for number in range(len(streams))]


def _go_on(stream: Asking[T], answer: Tensor | None, number: int, ends: dict[int, T]) -> Ask | None:
    try:
        return next(stream) if answer is None else stream.send(answer)
    except StopIteration as stop:
        ends[number] = stop.value
        return None


def _answers(asks: Sequence[Ask], texts: ClassTexts) -> Tensor:
    prompt = Prompt(torch.cat([ask.context for ask in asks]))
    cotangents = [ask.cotangent for ask in asks if ask.cotangent is not None]
    return texts.pullback(prompt, torch.cat(cotangents)).context if cotangents else texts.features(prompt)
