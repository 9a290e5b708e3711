"""Checks of a memory for streams: a `PromptMemory` that decides alike each time and can be saved and brought back."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from poise import methods
from poise.backbones import load_model
from poise.prompts import tokenise
from poise.testing.checks import require, run_checks
from poise.tuning import PromptMemory, StreamTuner

MakeMemory = Callable[[Tensor, int], PromptMemory]  # the initial state [M, E], the number of slots
_SLOTS = 3
_LABELS = ("cat", "great white shark", "dog")


def _init() -> Tensor:
    return torch.arange(8.0).view(2, 4)


def _use(memory: PromptMemory, image: int) -> int:
    """One image's part: a fresh slot is tuned, and on every other image a used one with it."""
    slot = memory.fresh()
    picked = [slot, *[used for used in memory.used() if used != slot][: image % 2]]
    values = memory.values.clone()
    values[picked] += 1 + image
    memory.finish(picked, values)
    return slot


def _moment(memory: PromptMemory) -> tuple[Tensor, list[int]]:
    return memory.values.clone(), list(memory.used())


def _same(one: tuple[Tensor, list[int]], other: tuple[Tensor, list[int]]) -> bool:
    return torch.equal(one[0], other[0]) and one[1] == other[1]


def capacity(make: MakeMemory) -> None:
    """A new memory holds the init; a fresh slot does too; there are never more slots than its size."""
    memory, init = make(_init(), _SLOTS), _init()
    require(memory.ordered, "'ordered' must be True, or a stream could be split")
    require(not memory.used(), "a new memory has no used slots")
    require(torch.equal(memory.values, init.expand(_SLOTS, 2, 4)), "a new memory holds the init in every slot")
    for image in range(4 * _SLOTS):
        slot = memory.fresh()
        require(slot in range(_SLOTS), f"fresh() must give one of {_SLOTS} slots")
        require(torch.equal(memory.values[slot], init), "a fresh slot must hold the init")
        require(slot not in memory.used(), "a fresh slot is not a used one")
        require(memory.fresh() == slot, "fresh() must give the same slot until it is used")
        _use(memory, image)
        used = memory.used()
        require(slot in used, "a slot that was finished is used")
        require(len(set(used)) == len(used) <= _SLOTS, f"it must never hold more than its {_SLOTS} slots")
        require(memory.values.shape == (_SLOTS, 2, 4), "values must keep their shape [size, M, E]")


def same_decisions(make: MakeMemory) -> None:
    """The same uses lead to the same slots."""
    one, other = make(_init(), _SLOTS), make(_init(), _SLOTS)
    for image in range(2 * _SLOTS):
        require(_use(one, image) == _use(other, image), "the same uses must lead to the same slots")


def moments_come_back(make: MakeMemory) -> None:
    """``state`` keeps a moment and ``reset`` brings it back, as if it had never been left."""
    one = make(_init(), _SLOTS)
    for image in range(2 * _SLOTS):
        _use(one, image)
    kept, before = one.state(), _moment(one)
    later = [(_use(one, image), _moment(one)) for image in range(_SLOTS + 1)]
    again = make(_init(), _SLOTS)
    again.reset(*kept)
    require(_same(_moment(again), before), "state() must keep a moment, whatever is used after it")
    for image, (slot, moment) in enumerate(later):
        require(_use(again, image) == slot and _same(_moment(again), moment), "reset() must go on as if never left")
    kept, before = one.state(), _moment(one)
    one.fresh()
    one.reset(*kept)
    require(_same(_moment(one), before), "reset() after fresh() must leave no trace")


def _stream(make: MakeMemory, variant: str) -> tuple[StreamTuner, Tensor]:
    """A tuner that has seen no image, and unit features of eight."""
    encoder, generator = load_model("tiny", device="cpu", dtype="float64"), torch.Generator().manual_seed(5)
    images = torch.randn(1, 1, 32, dtype=torch.float64, generator=generator)
    images = images + torch.randn(8, 6, 32, dtype=torch.float64, generator=generator)
    classes, chosen = tokenise(encoder, _LABELS), [methods.get("tpt", lr=0.02)]
    tuner = StreamTuner(encoder, classes, chosen, size=_SLOTS, variant=variant, memory=make)
    return tuner, torch.nn.functional.normalize(images, dim=-1)


def streams_repeat(make: MakeMemory, variant: str) -> None:
    """Two streams of the same images answer alike."""
    (one, images), (other, _) = _stream(make, variant), _stream(make, variant)
    answers = [tuner.predict(images)["tpt"].logits for tuner in (one, other)]
    require(torch.equal(*answers), "two streams must answer alike")


def streams_go_on(make: MakeMemory, variant: str) -> None:
    """A stream goes on after save and restore, bit by bit."""
    (whole, images), (first, _), (second, _) = (_stream(make, variant) for _ in range(3))
    head = first.predict(images[:5])["tpt"].logits
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    parts = torch.cat([head, second.predict(images[5:])["tpt"].logits])
    require(
        torch.equal(parts, whole.predict(images)["tpt"].logits),
        "a stream must go on after save and restore, bit by bit",
    )


def non_finite_images_leave_no_trace(make: MakeMemory, variant: str) -> None:
    """An image whose features are not finite changes nothing."""
    tuner, images = _stream(make, variant)
    tuner.predict(images[:5])
    moment = _moment(tuner.streams["tpt"].memory)
    tuner.predict(torch.full_like(images[:1], torch.nan))
    require(_same(_moment(tuner.streams["tpt"].memory), moment), "an image that isn't finite must leave no trace")


def _under(check: Callable[[MakeMemory, str], None], variant: str) -> Callable[[MakeMemory], None]:
    def run(make: MakeMemory) -> None:
        check(make, variant)

    run.__name__, run.__doc__ = f"{check.__name__}_{variant}", check.__doc__
    return run


_STREAM_CHECKS = (streams_repeat, streams_go_on, non_finite_images_leave_no_trace)
MEMORY_CHECKS = (
    capacity,
    same_decisions,
    moments_come_back,
    *(_under(check, variant) for variant in ("described", "as-published") for check in _STREAM_CHECKS),
)


def check_memory(make: MakeMemory) -> None:
    """Run all of `MEMORY_CHECKS`; raise AssertionError with every rule that the memories which ``make`` gives break.

    Checked by scripted uses, and in a stream of DynaPrompt's: the init, capacity, the same decisions each time, a
    moment that can be brought back, and images that leave no trace because something was not finite.
    """
    run_checks(make, MEMORY_CHECKS)
