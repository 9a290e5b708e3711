"""Several methods along one stream, each with its memory, which can be saved and restored exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidCheckpointError
from poise.methods import Method
from poise.prompts import init_prompt
from poise.tuning.answer import stacked
from poise.tuning.dynaprompt import DynaPrompt, answer_next
from poise.tuning.episodic import check_names
from poise.tuning.memory import PromptMemory
from poise.tuning.saved_state import identity, read_state, write_state
from poise.types import Answer, ClassTokens, DualEncoder, Prompt

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

    def predict(self, image_features: Tensor) -> dict[str, Answer[Tensor]]:
        """Return each method's answers for the next images' features [B, V, D], in order."""
        for stream in self.streams.values():
            stream.picked = []
        features = image_features.to(self.texts.encoder.device)
        rows = [answer_next(list(self.streams.values()), image[None]) for image in features]
        return {name: stacked(column) for name, column in zip(self.streams, zip(*rows, strict=True), strict=True)}

    def save(self, folder: str | Path) -> None:
        """Write each method's memory into ``folder``."""
        for stream in self.streams.values():
            save_memory(stream, Path(folder) / f"{stream.method.file_name}.safetensors")

    def restore(self, folder: str | Path) -> None:
        """Restore what `save` wrote; answers are then bitwise those of an uninterrupted stream."""
        for stream in self.streams.values():
            restore_memory(stream, Path(folder) / f"{stream.method.file_name}.safetensors")


def save_memory(stream: DynaPrompt, path: str | Path) -> None:
    """Write a stream's memory; the file appears whole or not at all."""
    values, order, uses = stream.memory.state()
    tensors = {"values": values, "init": stream.memory.init}
    used = stream.memory.used()
    if used and stream.variant == "described":
        tensors["texts"] = torch.stack([stream.text_features[slot] for slot in used])
    write_state(path, _FORMAT, {**_identity(stream), "order": order, "uses": uses, "seen": stream.seen}, tensors)


def restore_memory(stream: DynaPrompt, path: str | Path) -> None:
    """Restore the memory that `save_memory` wrote."""
    tensors, facts = read_state(path, _FORMAT, _identity(stream))
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
        **identity(stream.texts),
        "method": json.dumps(stream.method.settings(), default=str),
        "variant": stream.variant,
        "size": len(stream.memory.order),
    }
