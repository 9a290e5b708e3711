"""Conformance checks for what others add: an objective, a backbone or a memory that passes them works in all of poise.

Each check raises AssertionError with what was expected. They use nothing but the public protocols.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from poise import methods
from poise.backbones import load
from poise.prompts import init_prompt, tokenise
from poise.tuning import PromptMemory, StreamTuner
from poise.types import DualEncoder, Objective, Outputs, Prompt

_LABELS = ("cat", "great white shark", "dog")


def example_outputs(images: int = 3, views: int = 8, classes: int = 5, width: int = 6, seed: int = 0) -> Outputs:
    """Random outputs in float64 whose logits follow from their features, with gradient to the text features."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)

    image_features, texts = unit(images, views, width), unit(images, classes, width).requires_grad_()
    reference = 10 * image_features @ unit(1, classes, width).mT
    return Outputs(image_features, texts, 10 * image_features @ texts.mT, reference)


def check_objective(objective: Objective) -> None:
    """Shape, finiteness, gradient flow, independence of images, view order, and float32 against float64."""
    out = example_outputs()
    value = objective(out)
    assert value.shape == (3,), f"an objective returns one number per image, [B]; got {tuple(value.shape)}"
    assert value.isfinite().all(), "the value is not finite"
    (gradient,) = torch.autograd.grad(value.sum(), out.text_features, retain_graph=True)
    assert gradient.isfinite().all(), "the gradient is not finite"
    assert gradient.abs().sum() > 0, "no gradient reaches the text features"
    (alone,) = torch.autograd.grad(value[0], out.text_features, retain_graph=True)
    assert alone[1:].abs().sum() == 0, "one image's value depends on another image"

    single = objective(_changed(out, lambda tensor: tensor[:1]))
    torch.testing.assert_close(
        single, value[:1], msg="a batch of one gives another value than the same image among three"
    )
    order = torch.tensor([0, *reversed(range(1, out.logits.shape[1]))])
    shuffled = objective(
        Outputs(out.image_features[:, order], out.text_features, out.logits[:, order], out.reference_logits[:, order])
    )
    torch.testing.assert_close(shuffled, value, msg="the value depends on the order of the views after view 0")
    narrow = objective(_changed(out, lambda tensor: tensor.float()))
    torch.testing.assert_close(narrow.double(), value, rtol=1e-3, atol=1e-4, msg="float32 and float64 disagree")


def _changed(out: Outputs, change: object) -> Outputs:
    assert callable(change)
    return Outputs(
        change(out.image_features), change(out.text_features), change(out.logits), change(out.reference_logits)
    )  # fmt: skip


def check_backbone(encoder: DualEncoder) -> None:
    """Raise AssertionError where ``encoder`` breaks what the rest of poise relies on."""
    _require(isinstance(encoder, DualEncoder), "it must have every member of poise.types.DualEncoder")
    _require(encoder.scale > 0, "the scale must be positive")
    _check_tokens(encoder)
    _check_images(encoder)
    _check_texts(encoder)
    _check_gradient(encoder)
    _check_logits(encoder)


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise AssertionError(f"This backbone does not conform: {rule}.")


def _close(one: torch.Tensor, other: torch.Tensor, encoder: DualEncoder) -> bool:
    tolerance = 1e-9 if encoder.dtype == torch.float64 else 1e-4 if encoder.dtype == torch.float32 else 5e-2
    return bool((one - other).abs().max() <= tolerance)


def _unit(features: torch.Tensor) -> bool:
    return bool((features.norm(dim=-1) - 1).abs().max() <= 1e-4) and bool(features.isfinite().all())


def _check_tokens(encoder: DualEncoder) -> None:
    long = "word " * (2 * encoder.context_length)
    (row,) = encoder.token_ids([long])
    _require(len(row) > encoder.context_length, "token_ids must not truncate")
    first, second = encoder.token_ids(["cat", "a photo of a cat."])
    _require(len(first) < len(second), "token_ids must not pad")
    vectors = encoder.embed(torch.tensor(first))
    _require(vectors.dim() == 2 and len(vectors) == len(first), "embed must map ids [L] to vectors [L, E]")
    _require(vectors.dtype == encoder.dtype and vectors.device == encoder.device, "embed keeps dtype and device")


def _pictures(encoder: DualEncoder) -> torch.Tensor:
    size = encoder.image.size
    return torch.randn(2, 3, 3, size, size, generator=torch.Generator().manual_seed(0)).to(encoder.device)


def _check_images(encoder: DualEncoder) -> None:
    pictures = _pictures(encoder)
    features = encoder.encode_images(pictures)
    _require(features.shape[:2] == (2, 3) and features.dim() == 3, "encode_images must give [B, V, D]")
    _require(_unit(features), "image features must have unit length")
    _require(not features.requires_grad, "image features need no gradient without image prompts")
    _require(
        _close(encoder.encode_images(pictures[1:])[0], features[1], encoder), "images must not depend on batch mates"
    )


def _check_texts(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, _LABELS)
    start = init_prompt(encoder, classes)
    features = encoder.encode_classes(classes, start)
    _require(features.shape[:2] == (1, 3) and _unit(features), "encode_classes must give unit features [B, C, D]")
    alone = encoder.encode_classes(classes.rows(1, 2), start)
    _require(_close(alone[0, 0], features[0, 1], encoder), "a class must not depend on its neighbours")
    other = torch.randn(start.context.shape, generator=torch.Generator().manual_seed(1)).to(start.context)
    both = encoder.encode_classes(classes, Prompt(torch.cat([start.context, other * start.context.std()])))
    _require(_close(both[0], features[0], encoder), "a prompt must not depend on its batch mates")


def _check_gradient(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, _LABELS)
    context = init_prompt(encoder, classes).context.float().repeat(2, 1, 1).requires_grad_()
    features = encoder.encode_classes(classes, Prompt(context))
    (gradient,) = torch.autograd.grad(
        (features[1] * torch.linspace(-1, 1, features.shape[-1]).to(features)).sum(), context
    )
    _require(bool(gradient.isfinite().all()), "the prompt's gradient must be finite")
    _require(bool(gradient[1].abs().max() > 0), "the prompt must get a gradient")
    _require(bool(gradient[0].abs().max() == 0), "an image's gradient must not reach another image's prompt")


def _check_logits(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, _LABELS)
    images = encoder.encode_images(_pictures(encoder))
    texts = encoder.encode_classes(classes, init_prompt(encoder, classes))
    logits = encoder.logits(images, texts)
    _require(logits.shape == (2, 3, 3), "logits must give [B, V, C], with one text row serving all images")
    _require(logits.dtype in (torch.float32, torch.float64), "logits must be float32 or wider")
    expected = encoder.scale * (images.double() @ texts.double().transpose(-1, -2)) + encoder.bias
    _require(
        bool((logits - expected).abs().max() <= 1e-3 * max(1.0, encoder.scale)), "logits are scale * cosine + bias"
    )


MakeMemory = Callable[[Tensor, int], PromptMemory]  # the starting state [M, E], the number of slots
_SLOTS = 3


def check_memory(make: MakeMemory) -> None:
    """Raise AssertionError where the memories that ``make`` gives break what an ordered stream relies on.

    Checked by scripted uses, and in a stream of DynaPrompt's: the starting state, capacity, the same decisions each
    time, a moment that can be brought back, and images that leave no trace because something was not finite.
    """
    _check_capacity(make)
    _check_moments(make)
    for variant in ("described", "as-published"):
        _check_stream(make, variant)


def _remember(condition: bool, rule: str) -> None:
    if not condition:
        raise AssertionError(f"This memory does not conform: {rule}.")


def _start() -> Tensor:
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


def _check_capacity(make: MakeMemory) -> None:
    memory, start = make(_start(), _SLOTS), _start()
    _remember(memory.ordered, "'ordered' must be True, or a stream could be split")
    _remember(not memory.used(), "a new memory has no used slots")
    _remember(torch.equal(memory.values, start.expand(_SLOTS, 2, 4)), "a new memory holds the init in every slot")
    for image in range(4 * _SLOTS):
        slot = memory.fresh()
        _remember(slot in range(_SLOTS), f"fresh() must give one of {_SLOTS} slots")
        _remember(torch.equal(memory.values[slot], start), "a fresh slot must hold the init")
        _remember(slot not in memory.used(), "a fresh slot is not a used one")
        _remember(memory.fresh() == slot, "fresh() must give the same slot until it is used")
        _use(memory, image)
        used = memory.used()
        _remember(slot in used, "a slot that was finished is used")
        _remember(len(set(used)) == len(used) <= _SLOTS, f"it must never hold more than its {_SLOTS} slots")
        _remember(memory.values.shape == (_SLOTS, 2, 4), "values must keep their shape [size, M, E]")


def _check_moments(make: MakeMemory) -> None:
    one, other = make(_start(), _SLOTS), make(_start(), _SLOTS)
    for image in range(2 * _SLOTS):
        _remember(_use(one, image) == _use(other, image), "the same uses must lead to the same slots")
    kept, before = one.state(), _moment(one)
    later = [(_use(one, image), _moment(one)) for image in range(_SLOTS + 1)]
    again = make(_start(), _SLOTS)
    again.reset(*kept)
    _remember(_same(_moment(again), before), "state() must keep a moment, whatever is used after it")
    for image, (slot, moment) in enumerate(later):
        _remember(_use(again, image) == slot and _same(_moment(again), moment), "reset() must go on as if never left")
    kept, before = one.state(), _moment(one)
    one.fresh()
    one.reset(*kept)
    _remember(_same(_moment(one), before), "reset() after fresh() must leave no trace")


def _check_stream(make: MakeMemory, variant: str) -> None:
    encoder, chosen = load("tiny", device="cpu", dtype="float64"), [methods.get("tpt", lr=0.02)]
    classes, generator = tokenise(encoder, _LABELS), torch.Generator().manual_seed(5)
    images = torch.nn.functional.normalize(
        torch.randn(1, 1, 32, dtype=torch.float64, generator=generator)
        + torch.randn(8, 6, 32, dtype=torch.float64, generator=generator),
        dim=-1,
    )

    def begin() -> StreamTuner:
        return StreamTuner(encoder, classes, chosen, size=_SLOTS, variant=variant, memory=make)

    whole = begin().predict(images)["tpt"].logits
    _remember(torch.equal(begin().predict(images)["tpt"].logits, whole), "two streams must answer alike")
    first, second = begin(), begin()
    head = first.predict(images[:5])["tpt"].logits
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder))
        second.restore(Path(folder))
    moment = _moment(second.streams["tpt"].memory)
    second.predict(torch.full_like(images[:1], torch.nan))
    _remember(_same(_moment(second.streams["tpt"].memory), moment), "an image that isn't finite must leave no trace")
    rest = second.predict(images[5:])["tpt"].logits
    _remember(torch.equal(torch.cat([head, rest]), whole), "a stream must go on after save and restore, bit by bit")
