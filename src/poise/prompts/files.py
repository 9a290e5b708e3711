"""A fitted prompt on disk: a safetensors file that also records the model, template and labels it was fitted for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from poise import __version__
from poise.errors import InvalidCheckpointError, reason_of
from poise.files import hash_names, read_tensors, save_tensors
from poise.prompts.tokens import tokenise
from poise.types import ClassTokens, DualEncoder, Prompt, fingerprint_of

_FORMAT = "poise-prompt/1"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a fitted prompt may be used for."""

    kind: str  # kind of init: coop, cocoop, maple, fpp
    model: str  # name of the encoder
    template: str  # sentence whose context words the fitted vectors replace
    context: str = "auto"  # which words of the template these are, as in `tokenise`
    tokens: int | None = None  # number of context tokens, as in `tokenise`
    labels_hash: str = ""  # hash of the labels, if the vectors are class-specific
    version: str = __version__  # version of poise that wrote the file
    model_fingerprint: str = ""  # of the encoder; "" if it has none, or the file was converted or is older

    @classmethod
    def of(cls, encoder: DualEncoder, **facts: Any) -> Facts:
        """Return the facts of a prompt that was fitted on ``encoder``."""
        return cls(model=encoder.name, model_fingerprint=fingerprint_of(encoder), **facts)


@dataclass(frozen=True)
class StoredPrompt:
    """Named tensors without a batch axis, and what they were fitted for."""

    tensors: Mapping[str, Tensor]  # always "context" [M, E] or [C, M, E]; others depend on the kind
    facts: Facts

    def prompt(self) -> Prompt:
        """Return the context as a prompt shared by all images, [1, M, E] or [1, C, M, E]."""
        return Prompt(self.tensors["context"][None])

    def classes(
        self, encoder: DualEncoder, labels: Iterable[str], *, on_long_label: str = "error", repeats: bool = False
    ) -> ClassTokens:
        """Tokenise the labels under the prompt's template, after checking that the prompt fits model and labels."""
        facts, labels = self.facts, tuple(labels)
        _check(facts.model == encoder.name, "model", facts.model, encoder.name, "Fit the prompt on this model.")
        if facts.model_fingerprint:
            found = fingerprint_of(encoder, like=facts.model_fingerprint)
            hint = f"The weights, tokenizer or preprocessing of '{encoder.name}' are others than when it was fitted."
            if not found:
                hint = "This encoder has no fingerprint: it must implement `poise.types.Fingerprinted`."
            _check(facts.model_fingerprint == found, "model fingerprint", facts.model_fingerprint, found, hint)
        classes = tokenise(
            encoder,
            labels,
            facts.template,
            context=facts.context,
            tokens=facts.tokens,
            on_long_label=on_long_label,
            repeats=repeats,
        )
        shape, slots = tuple(self.tensors["context"].shape), classes.slots.shape[1]
        width = int(encoder.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
        _check(shape[-1] == width, "token width", shape[-1], width, "The prompt belongs to another text tower.")
        _check(shape[-2] == slots, "context length", shape[-2], slots, f"The template is {classes.template!r}.")
        if len(shape) == 3:
            _check(shape[0] == len(classes), "number of classes", shape[0], len(classes), "Give the labels it is for.")
        if facts.labels_hash:
            labels_hash = hash_names(labels)
            hint = "Its contexts are class-specific: give the labels it was fitted on, in the same order."
            _check(facts.labels_hash == labels_hash, "labels (hash)", facts.labels_hash, labels_hash, hint)
        return classes


def save(path: str | Path, stored: StoredPrompt) -> None:
    """Write a prompt to a file, which appears complete or not at all."""
    save_tensors(path, stored.tensors, {"format": _FORMAT, "facts": json.dumps(asdict(stored.facts))})


def load(path: str | Path) -> StoredPrompt:
    """Read a prompt written by `save`."""
    try:
        tensors, metadata = read_tensors(path)
    except FileNotFoundError:
        raise InvalidCheckpointError(f"There is no prompt file '{path}'.", hint="Make one with `poise fit`.") from None
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpointError(
            f"'{path}' is not a readable safetensors file: {reason_of(error)}.",
            hint="Convert published checkpoints with `poise convert`.",
        ) from None
    if metadata.get("format") != _FORMAT or "context" not in tensors:
        raise InvalidCheckpointError(
            f"'{path}' is safetensors of format {metadata.get('format')!r} with {', '.join(tensors) or 'no tensors'}.",
            hint=f"A prompt file has format {_FORMAT!r} and a tensor 'context'; make one with `poise fit`.",
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidCheckpointError(f"'{path}' has values that are not finite.", hint="Fit the prompt again.")
    shape = list(tensors["context"].shape)
    if len(shape) not in (2, 3):
        raise InvalidCheckpointError(f"'{path}' has a context of shape {shape}.", hint="Accepted: [M, E], [C, M, E].")
    return StoredPrompt(tensors, _facts(path, metadata.get("facts", "")))


def _facts(path: str | Path, text: str) -> Facts:
    try:
        facts = Facts(**json.loads(text))
        wrong = [name for name, value in asdict(facts).items() if name != "tokens" and not isinstance(value, str)]
        if wrong or not (facts.tokens is None or type(facts.tokens) is int):
            raise TypeError(f"wrong type of {', '.join(wrong) or 'tokens'}")
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"'{path}' does not record what it was fitted for: {error}.", hint="Fit or convert the prompt again."
        ) from None
    return facts


def _check(fits: bool, fact: str, stored: object, needed: object, hint: str) -> None:
    if not fits:
        raise InvalidCheckpointError(f"The prompt's {fact} is {stored!r}, but {needed!r} is needed.", hint=hint)
