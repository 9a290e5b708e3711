"""Checks of a `PromptMemory` for streams: its decisions are deterministic, and it can be saved and restored."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from poise import methods
from poise.backbones import load_model
from poise.prompts import tokenise
from poise.testing.conformance import LABELS, require, run_checks
from poise.tuning import PromptMemory, StreamTuner
from poise.types import DualEncoder

MakeMemory = Callable[[Tensor, int], PromptMemory]  # arguments: the initial prompt [M, E], the number of slots
_SLOTS = 3
_INIT = torch.arange(8.0).view(2, 4)
_VARIANTS = ("described", "as-published")


def _use(memory: PromptMemory, image: int) -> int:
    """Process one image: tune a fresh slot and, for every other image, one used slot."""
    slot = memory.fresh()
    picked = [slot, *[used for used in memory.used() if used != slot][: image % 2]]
    values = memory.values.clone()
    values[picked] += 1 + image
    memory.finish(picked, values)
    return slot


def _snapshot(memory: PromptMemory) -> tuple[list[object], list[int]]:
    return memory.values.tolist(), list(memory.used())


def capacity(make: MakeMemory) -> None:
    """New and fresh slots contain the init, and the number of slots never changes."""
    memory = make(_INIT, _SLOTS)
    require(memory.ordered, "'ordered' must be True, or a stream could be split")
    require(not memory.used(), "a new memory has no used slots")
    require(torch.equal(memory.values, _INIT.expand(_SLOTS, 2, 4)), "a new memory contains the init in every slot")
    for image in range(4 * _SLOTS):
        slot = memory.fresh()
        require(slot in range(_SLOTS), f"fresh() must return one of {_SLOTS} slots")
        require(torch.equal(memory.values[slot], _INIT), "a fresh slot must contain the init")
        require(slot not in memory.used(), "a fresh slot is not a used one")
        require(memory.fresh() == slot, "fresh() must return the same slot until it is used")
        _use(memory, image)
        used = memory.used()
        require(slot in used, "a slot that was finished is used")
        require(len(set(used)) == len(used) <= _SLOTS, f"there must never be more than {_SLOTS} slots")
        require(memory.values.shape == (_SLOTS, 2, 4), "values must have the shape [size, M, E]")


def same_decisions(make: MakeMemory) -> None:
    """The same uses lead to the same slots."""
    one, other = make(_INIT, _SLOTS), make(_INIT, _SLOTS)
    for image in range(2 * _SLOTS):
        require(_use(one, image) == _use(other, image), "the same uses must lead to the same slots")


def state_is_restored(make: MakeMemory) -> None:
    """``reset`` restores what ``state`` returned."""
    one, other = make(_INIT, _SLOTS), make(_INIT, _SLOTS)
    for image in range(2 * _SLOTS):
        _use(one, image)
    state, before = one.state(), _snapshot(one)
    later = [(_use(one, image), _snapshot(one)) for image in range(_SLOTS + 1)]
    other.reset(*state)
    require(_snapshot(other) == before, "later uses must not change what state() returned")
    for image, expected in enumerate(later):
        require((_use(other, image), _snapshot(other)) == expected, "reset() must restore the complete state")
    state, before = one.state(), _snapshot(one)
    one.fresh()
    one.reset(*state)
    require(_snapshot(one) == before, "reset() must undo fresh()")


@functools.cache
def _encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def _stream(make: MakeMemory, variant: str) -> tuple[StreamTuner, Tensor]:
    """Return a new tuner and unit features of eight images."""
    encoder, generator = _encoder(), torch.Generator().manual_seed(5)
    images = torch.randn(1, 1, 32, dtype=torch.float64, generator=generator)
    images = images + torch.randn(8, 6, 32, dtype=torch.float64, generator=generator)
    classes, chosen = tokenise(encoder, LABELS), [methods.get("tpt", lr=0.02)]
    tuner = StreamTuner(encoder, classes, chosen, size=_SLOTS, variant=variant, memory=make)
    return tuner, torch.nn.functional.normalize(images, dim=-1)


def streams_repeat(make: MakeMemory) -> None:
    """Two streams of the same images have equal results."""
    for variant in _VARIANTS:
        (one, images), (other, _) = _stream(make, variant), _stream(make, variant)
        results = [tuner.predict(images)["tpt"].logits for tuner in (one, other)]
        require(torch.equal(*results), f"two streams must have equal results ({variant})")


def streams_resume(make: MakeMemory) -> None:
    """A stream that is saved and restored has the same results as one without interruption."""
    for variant in _VARIANTS:
        (whole, images), (first, _), (second, _) = (_stream(make, variant) for _ in range(3))
        head = first.predict(images[:5])["tpt"].logits
        with tempfile.TemporaryDirectory() as folder:
            first.save(Path(folder))
            second.restore(Path(folder))
        parts = torch.cat([head, second.predict(images[5:])["tpt"].logits])
        same = torch.equal(parts, whole.predict(images)["tpt"].logits)
        require(same, f"a restored stream must have exactly the results of an uninterrupted one ({variant})")


def non_finite_images_are_ignored(make: MakeMemory) -> None:
    """An image whose features are not finite does not change the memory."""
    for variant in _VARIANTS:
        tuner, images = _stream(make, variant)
        tuner.predict(images[:5])
        before = _snapshot(tuner.streams["tpt"].memory)
        tuner.predict(torch.full_like(images[:1], torch.nan))
        after = _snapshot(tuner.streams["tpt"].memory)
        require(after == before, f"an image that isn't finite must not change the memory ({variant})")


MEMORY_CHECKS = (
    capacity,
    same_decisions,
    state_is_restored,
    streams_repeat,
    streams_resume,
    non_finite_images_are_ignored,
)


def check_memory(make: MakeMemory) -> None:
    """Run `MEMORY_CHECKS` on a class or function that creates memories; raise AssertionError with all failures."""
    run_checks(make, MEMORY_CHECKS)
