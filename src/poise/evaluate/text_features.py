"""Class text features before and after tuning, one ``.npz`` file per dataset, for t-SNE figures."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence

import numpy as np

SAMPLES = 3  # images whose tuned text features are stored
_EPOCH = (1980, 1, 1, 0, 0, 0)  # a zip file's earliest date: the same arrays give the same bytes


def sample_positions(chosen: Sequence[int]) -> list[int]:
    """Return the positions of a few of the run's images, spread over the dataset.

    >>> sample_positions(range(10))
    [0, 5, 9]
    """
    last = len(chosen) - 1
    return [chosen[index] for index in sorted({0, round(last / 2 + 0.1), last})][:SAMPLES]


def pack(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of an ``.npz`` file without dates."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), content.getvalue(), zipfile.ZIP_DEFLATED)
    return sink.getvalue()
