"""Several methods along one stream, each with its memory, which can be saved and restored exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidCheckpointError
from poise.methods import Method
from poise.prompts import init_prompt
from poise.storage import hash_names, read_tensors, save_tensors
from poise.tuning.answer import stacked
from poise.tuning.dynaprompt import DynaPrompt, answer_next
from poise.tuning.episodic import check_names
from poise.tuning.memory import PromptMemory
from poise.types import Adapted, ClassTokens, DualEncoder, Prompt

_FORMAT = "poise-memory/2"


class StreamTuner:
    """`DynaPrompt` for each method; image features come in once, and methods share passes through the text tower.

    Args:
        encoder: the model.
        classes: the labels under a template.
        methods: the methods to tune by.
        init: the context [1, M, E] to start from; the template's words by default.
        size: the number of prompts in each memory.
        variant: "described" or "as-published".
        memory: makes a memory from the init [M, E] and the size.
    """

    reads = "features"
    ordered = True

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Method],
        init: Prompt | None = None,
        *,
        size: int = 10,
        variant: str = "described",
        memory: Callable[[Tensor, int], PromptMemory] = PromptMemory,
    ) -> None:
        check_names(methods)
        self.texts = ClassTexts(encoder, classes, init or init_prompt(encoder, classes))
        self.streams = {method.name: DynaPrompt(self.texts, method, size, variant, memory=memory) for method in methods}

    def predict(self, image_features: Tensor) -> dict[str, Adapted]:
        """Return each method's answers for the next images' features [B, V, D], in order."""
        for stream in self.streams.values():
            stream.picked = []
        features = image_features.to(self.texts.encoder.device)
        rows = [answer_next(list(self.streams.values()), image[None]) for image in features]
        return {name: stacked(column) for name, column in zip(self.streams, zip(*rows, strict=True), strict=True)}

    def save(self, folder: str | Path) -> None:
        """Write each method's memory into ``folder``."""
        for name, stream in self.streams.items():
            save_memory(stream, Path(folder) / f"{name}.safetensors")

    def restore(self, folder: str | Path) -> None:
        """Restore what `save` wrote; answers are then bitwise those of an uninterrupted stream."""
        for name, stream in self.streams.items():
            restore_memory(stream, Path(folder) / f"{name}.safetensors")


def save_memory(stream: DynaPrompt, path: str | Path) -> None:
    """Write a stream's memory; the file appears whole or not at all."""
    values, order, uses = stream.memory.state()
    tensors = {"values": values, "init": stream.memory.init}
    used = stream.memory.used()
    if used and stream.variant == "described":
        tensors["texts"] = torch.stack([stream.text_features[slot] for slot in used])
    facts = {**_identity(stream), "order": order, "uses": uses, "seen": stream.seen}
    save_tensors(path, tensors, {"format": _FORMAT, "facts": json.dumps(facts)})


def restore_memory(stream: DynaPrompt, path: str | Path) -> None:
    """Restore the memory that `save_memory` wrote."""
    try:
        tensors, metadata = read_tensors(path)
    except (FileNotFoundError, SafetensorError, OSError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' can't be read: {problem}.", hint="Start the stream from its first image."
        ) from None
    if metadata.get("format") != _FORMAT:
        raise InvalidCheckpointError(
            f"'{path}' has format {metadata.get('format')!r}.", hint=f"A memory has {_FORMAT!r}."
        )
    facts = json.loads(metadata["facts"])
    for name, ours in _identity(stream).items():
        if facts.get(name) != ours:
            raise InvalidCheckpointError(
                f"The memory's {name} is {facts.get(name)!r}, but this stream's is {ours!r}.",
                hint="A memory belongs to one model, label set, method and variant.",
            )
    device = stream.texts.encoder.device
    if not torch.equal(tensors["init"].to(device), stream.memory.init):
        raise InvalidCheckpointError(
            f"'{path}' was saved with another init.", hint="Give the same init, dtype and template."
        )
    stream.memory.reset(tensors["values"].to(device), facts["order"], facts["uses"])
    texts = tensors.get("texts", torch.empty(0)).to(device)
    stream.text_features = dict(zip(stream.memory.used(), texts, strict=False))
    stream.seen = facts["seen"]


def _identity(stream: DynaPrompt) -> dict[str, object]:
    return {
        "model": stream.texts.encoder.name,
        "labels": hash_names(stream.texts.classes.labels),
        "template": stream.texts.classes.template,
        "method": json.dumps(stream.method.settings(), default=str),
        "variant": stream.variant,
        "size": len(stream.memory.order),
    }
