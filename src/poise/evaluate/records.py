"""Per-image rows: one for each image and method, as Parquet bytes that depend on the numbers alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poise.objectives.dispersion import mean_distance_to_centroid
from poise.types import Adapted

if TYPE_CHECKING:
    from torch import Tensor

FULL_PROBS_UP_TO = 200  # classes; above, a row keeps the TOP most probable ones only
TOP = 20
NO_CLASS = -1  # prediction of a row that has an error

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("model", pa.string()),
        ("dataset", pa.string()),
        ("method", pa.string()),
        ("seed", pa.int64()),
        ("id", pa.string()),
        ("label", pa.int64()),
        ("prediction", pa.int64()),
        ("confidence", pa.float64()),
        ("entropy", pa.float64()),
        ("correct", pa.bool_()),
        ("init_prediction", pa.int64()),
        ("init_confidence", pa.float64()),
        ("init_entropy", pa.float64()),
        ("target_prediction", pa.int64()),
        ("probs", pa.list_(pa.float32())),
        ("top_ids", pa.list_(pa.int32())),
        ("top_probs", pa.list_(pa.float32())),
        ("atfd", pa.float64()),
        ("init_atfd", pa.float64()),
        ("fallback", pa.bool_()),
        ("error", pa.string()),
    ]
)


@dataclass(frozen=True)
class ImageRef:
    """The image that a row is about."""

    id: str
    label: int


@dataclass(frozen=True)
class Stamp:
    """What all rows of a file have in common."""

    run: str
    model: str
    dataset: str
    seed: int

    def columns(self, sample: ImageRef, method: str) -> dict[str, Any]:
        """The columns that say what the row is about."""
        own = {"run": self.run, "model": self.model, "dataset": self.dataset, "seed": self.seed}
        return {**own, "method": method, "id": sample.id, "label": sample.label}


def entropy(probs: np.ndarray) -> np.ndarray:
    """[..., C] -> [...] in nats; a class of probability 0 adds 0."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))


def dispersion(text_features: Tensor) -> np.ndarray:
    """ATFD of unit text features [B, C, D] -> [B]: mean distance to their centroid, in float64."""
    return np.asarray(mean_distance_to_centroid(text_features.detach().double()).cpu().numpy())


def answer_rows(
    stamp: Stamp, samples: Sequence[ImageRef], answers: Mapping[str, Adapted], init_atfd: float
) -> list[list[dict[str, Any]]]:
    """For each of B images its rows, one per method; ``init_atfd`` is the text features' dispersion before tuning."""
    columns = {method: _columns(answer) for method, answer in answers.items()}
    images = []
    for index, sample in enumerate(samples):
        rows = []
        for method, values in columns.items():
            row = {**stamp.columns(sample, method), **{name: column[index] for name, column in values.items()}}
            row["correct"] = bool(row["prediction"] == sample.label)
            row["init_atfd"] = init_atfd
            rows.append(row)
        images.append(rows)
    return images


def error_rows(stamp: Stamp, sample: ImageRef, methods: Sequence[str], error: str) -> list[dict[str, Any]]:
    """The rows of an image that could not be read: no class, no numbers, and the reason."""
    nothing = dict.fromkeys(("prediction", "init_prediction", "target_prediction"), NO_CLASS)
    unknown = dict.fromkeys(
        ("confidence", "entropy", "init_confidence", "init_entropy", "atfd", "init_atfd"), float("nan")
    )
    flags = {"correct": False, "fallback": False, "error": error}
    return [{**stamp.columns(sample, method), **nothing, **unknown, **flags} for method in methods]


def encode(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Parquet bytes of the rows; the same rows give the same bytes, whenever and wherever they are written."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, row_group_size=65_536, version="2.6")
    return sink.getvalue()


def read(folder: str | Path) -> pa.Table:
    """All rows below a folder (a run, or a folder of runs), in the order of the files' names."""
    parts = sorted(Path(folder).rglob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part, schema=SCHEMA) for part in parts]) if parts else SCHEMA.empty_table()


def _columns(answer: Adapted) -> dict[str, Sequence[Any]]:
    """One method's answers as columns of length B, probabilities in float64 except where they are stored."""
    probs, start, target = (
        tensor.detach().double().cpu().numpy() for tensor in (answer.probs, answer.init_probs, answer.target_probs)
    )
    kept = _all_probs(probs) if probs.shape[-1] <= FULL_PROBS_UP_TO else _top_probs(probs)
    return {
        "prediction": probs.argmax(-1).tolist(),
        "confidence": probs.max(-1).tolist(),
        "entropy": entropy(probs).tolist(),
        "init_prediction": start.argmax(-1).tolist(),
        "init_confidence": start.max(-1).tolist(),
        "init_entropy": entropy(start).tolist(),
        "target_prediction": target.argmax(-1).tolist(),
        "atfd": dispersion(answer.text_features).tolist(),
        "fallback": answer.fallback.detach().cpu().tolist(),
        "error": [None] * len(probs),
        **kept,
    }


def _all_probs(probs: np.ndarray) -> dict[str, Sequence[Any]]:
    nothing = [None] * len(probs)
    return {"probs": list(probs.astype(np.float32)), "top_ids": nothing, "top_probs": nothing}


def _top_probs(probs: np.ndarray) -> dict[str, Sequence[Any]]:
    order = np.argsort(-probs, axis=-1, kind="stable")[:, :TOP]
    top = np.take_along_axis(probs, order, axis=-1).astype(np.float32)
    return {"probs": [None] * len(probs), "top_ids": list(order.astype(np.int32)), "top_probs": list(top)}
