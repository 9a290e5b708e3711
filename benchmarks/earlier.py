"""The CPU path of earlier versions, for ratios: parts of 8 views, each operation divided among all threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from poise.backbones import encoder
from poise.backbones.vision import efficientnet
from poise.views import batched


def _one_by_one(work: Any, parts: Any) -> list[Any]:
    return [work(part) for part in parts]


@contextmanager
def earlier_path(model: Any) -> Iterator[None]:
    """Compute as before: no threads of our own, separate activations, 8 views per pass."""
    chunk = model.chunk
    model.chunk = 8
    with (
        mock.patch.object(encoder, "map_parallel", _one_by_one),
        mock.patch.object(batched, "map_parallel", _one_by_one),
        mock.patch.object(efficientnet, "_FUSED", None),
    ):
        try:
            yield
        finally:
            model.chunk = chunk
