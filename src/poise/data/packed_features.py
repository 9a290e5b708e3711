"""The stored features of one image as bytes, for a server that answers from them: a small safetensors file.

Its tensor ``features`` [V, D] is in float16, and its metadata say how it was made. What arrives may come from anybody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np

from poise.data.stored_features import FACTS, FeatureBlock, StoredRow, read_facts, write_facts
from poise.errors import InvalidDatasetError, reason_of

_MAX_HEADER = 1 << 16  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class PackedRow(StoredRow):
    """An image whose features were sent."""

    held: FeatureBlock
    row: int = 0

    def block(self) -> FeatureBlock:
        """Return its features."""
        return self.held


def pack(image: StoredRow) -> bytes:
    """Return the features of an image as bytes.

    Raises:
        InvalidDatasetError: There are none, because the image could not be read.
    """
    from safetensors.numpy import save

    block = image.block()
    if (failure := block.failures[image.row]) is not None:
        raise InvalidDatasetError(f"The image has no features: {failure[1]}")
    features = np.ascontiguousarray(block.features[image.row])
    facts = {FACTS.decode(): write_facts(block.made, *features.shape), "key": block.keys[image.row]}
    return save({"features": features}, metadata=facts)


def is_packed(content: bytes) -> bool:
    """Return whether bytes are a file of features, rather than an image.

    >>> is_packed(b"GIF89a and the rest of an image")
    False
    """
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= _MAX_HEADER


def unpack(content: bytes) -> PackedRow:
    """Return the image whose features `pack` has written.

    Raises:
        InvalidDatasetError: It was written otherwise.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        metadata = header["__metadata__"]
        key, facts = str(metadata["key"]), metadata[FACTS.decode()]
        features = load(content)["features"]
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise InvalidDatasetError(
            f"The features can't be read: {reason_of(error)}.",
            hint="Send what `poise.data.packed_features.pack` returns.",
        ) from None
    made, shape = read_facts(facts, "The file")
    if features.shape != shape or features.dtype != np.float16 or not np.isfinite(features).all():
        raise InvalidDatasetError(
            f"The features are {features.dtype} {features.shape} or not finite, instead of float16 {shape}.",
            hint="Send them as they were stored.",
        )
    return PackedRow(FeatureBlock(["<features>"], [key], [()], [None], features[None], made))
