"""A fitted prompt on disk: one safetensors file that also says which model, template and labels it is for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from poise import __version__
from poise.errors import InvalidCheckpointError
from poise.prompts.tokens import tokenise
from poise.storage import hash_names, save_tensors
from poise.types import ClassTokens, DualEncoder, Prompt

_FORMAT = "poise-prompt/1"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a fitted prompt is for. Loading it into anything else is refused."""

    kind: str  # who made it: coop, cocoop, maple, fpp
    model: str  # the encoder's name
    template: str  # a sentence whose context words the fitted vectors replace
    context: str = "auto"  # which of the template's words those are, as in `tokenise`
    tokens: int | None = None  # only the first so many of them
    labels_hash: str = ""  # set where the vectors belong to certain labels in a certain order
    version: str = __version__  # of poise, when it was written

    def place(
        self, encoder: DualEncoder, labels: tuple[str, ...], *, on_long_label: str = "error", repeats: bool = False
    ) -> ClassTokens:
        """The labels under this template; ``repeats`` lets classes share a name, as two pairs in ImageNet's list do."""
        return tokenise(
            encoder, labels, self.template, context=self.context, tokens=self.tokens, on_long_label=on_long_label,
            repeats=repeats,
        )  # fmt: skip


@dataclass(frozen=True)
class StoredPrompt:
    """Named tensors without a batch axis, and what they are for."""

    tensors: Mapping[str, Tensor]  # "context" [M, E] or [C, M, E] always; others depend on the kind
    facts: Facts

    def prompt(self) -> Prompt:
        """The context alone as a prompt for all images: [1, M, E] or [1, C, M, E]."""
        return Prompt(self.tensors["context"][None])

    def classes(
        self, encoder: DualEncoder, labels: Iterable[str], *, on_long_label: str = "error", repeats: bool = False
    ) -> ClassTokens:
        """The labels under this prompt's own template, after checking that the prompt fits model and labels."""
        facts, labels = self.facts, tuple(labels)
        _check(facts.model == encoder.name, "model", facts.model, encoder.name, "Fit the prompt on this model.")
        classes = facts.place(encoder, labels, on_long_label=on_long_label, repeats=repeats)
        self._check_shape(encoder, classes)
        if facts.labels_hash:
            ours = hash_names(labels)
            hint = "Its contexts are class-specific: give the labels it was fitted on, in the same order."
            _check(facts.labels_hash == ours, "labels (hash)", facts.labels_hash, ours, hint)
        return classes

    def _check_shape(self, encoder: DualEncoder, classes: ClassTokens) -> None:
        shape = tuple(self.tensors["context"].shape)
        width = int(encoder.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
        _check(shape[-1] == width, "token width", shape[-1], width, "The prompt belongs to another text tower.")
        slots = classes.slots.shape[1]
        _check(shape[-2] == slots, "context length", shape[-2], slots, f"The template is {classes.template!r}.")
        if len(shape) == 3:
            _check(shape[0] == len(classes), "number of classes", shape[0], len(classes), "Give the labels it is for.")


def save(path: str | Path, stored: StoredPrompt) -> None:
    """Write the prompt; the file appears whole or not at all."""
    save_tensors(path, stored.tensors, {"format": _FORMAT, "facts": json.dumps(asdict(stored.facts))})


def load(path: str | Path) -> StoredPrompt:
    """Read a prompt that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except FileNotFoundError:
        raise InvalidCheckpointError(f"There is no prompt file '{path}'.", hint="Make one with `poise fit`.") from None
    except (SafetensorError, OSError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' is not a readable safetensors file: {problem}.",
            hint="Convert published checkpoints with `poise convert`.",
        ) from None
    if metadata.get("format") != _FORMAT or "context" not in tensors:
        raise InvalidCheckpointError(
            f"'{path}' is safetensors of format {metadata.get('format')!r} with {', '.join(tensors) or 'no tensors'}.",
            hint=f"A prompt file has format {_FORMAT!r} and a tensor 'context'; make one with `poise fit`.",
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidCheckpointError(f"'{path}' holds numbers that are not finite.", hint="Fit the prompt again.")
    if tensors["context"].ndim not in (2, 3):
        raise InvalidCheckpointError(
            f"'{path}' has a context of shape {list(tensors['context'].shape)}.",
            hint="[M, E] or [C, M, E] is accepted.",
        )
    return StoredPrompt(tensors, _facts(path, metadata.get("facts", "")))


def _facts(path: str | Path, text: str) -> Facts:
    try:
        facts = Facts(**json.loads(text))
    except (ValueError, TypeError, RecursionError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' does not say what it is for: {problem}.", hint="Fit or convert the prompt again."
        ) from None
    wrong = [name for name, value in asdict(facts).items() if name != "tokens" and not isinstance(value, str)]
    if wrong or not (facts.tokens is None or type(facts.tokens) is int):
        raise InvalidCheckpointError(
            f"'{path}' has facts of the wrong type: {', '.join(wrong) or 'tokens'}.",
            hint="Fit or convert the prompt again.",
        )
    return facts


def _check(fine: bool, what: str, theirs: object, ours: object, hint: str) -> None:
    if not fine:
        raise InvalidCheckpointError(f"The prompt's {what} is {theirs!r}, but {ours!r} is needed.", hint=hint)
