"""Files of a stream's state: named tensors, and facts that must be the same when the stream goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidCheckpointError, reason_of
from poise.files import hash_names, read_tensors, save_tensors


def identity(texts: ClassTexts) -> dict[str, object]:
    """Return the facts about the class texts that a state belongs to."""
    return {
        "model": texts.encoder.name,
        "labels": hash_names(texts.classes.labels),
        "template": texts.classes.template,
    }


def write_state(path: str | Path, kind: str, facts: Mapping[str, object], tensors: Mapping[str, Tensor]) -> None:
    """Write a state; the file appears whole or not at all."""
    save_tensors(path, dict(tensors), {"format": kind, "facts": json.dumps(facts)})


def read_state(path: str | Path, kind: str, expected: Mapping[str, object]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and facts that `write_state` wrote; refuse a file whose facts differ from the expected ones.

    Args:
        path: the file.
        kind: the format's name and version.
        expected: facts of the stream that goes on.
    """
    try:
        tensors, metadata = read_tensors(path)
    except (FileNotFoundError, SafetensorError, OSError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' can't be read: {reason_of(problem)}.", hint="Start the stream from its first image."
        ) from None
    if metadata.get("format") != kind:
        raise InvalidCheckpointError(f"'{path}' has format {metadata.get('format')!r}.", hint=f"A memory has {kind!r}.")
    facts = json.loads(metadata["facts"])
    for name, ours in expected.items():
        if facts.get(name) != ours:
            raise InvalidCheckpointError(
                f"The memory's {name} is {facts.get(name)!r}, but this stream's is {ours!r}.",
                hint="A memory belongs to one model, label set, method and variant.",
            )
    return tensors, facts
