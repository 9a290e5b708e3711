"""Class text features before and after tuning, one ``.npz`` file per dataset, for t-SNE figures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

SAMPLES = 3  # images whose tuned text features are stored


def sample_positions(chosen: Sequence[int]) -> list[int]:
    """Return the positions of a few of the run's images, spread over the dataset.

    >>> sample_positions(range(10))
    [0, 5, 9]
    """
    last = len(chosen) - 1
    return [chosen[index] for index in sorted({0, round(last / 2 + 0.1), last})][:SAMPLES]


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of an ``.npz`` file; NumPy writes no dates, so the same arrays give the same bytes."""
    sink = io.BytesIO()
    np.savez_compressed(sink, **dict[str, Any](arrays))  # its stub takes every keyword as an option
    return sink.getvalue()
