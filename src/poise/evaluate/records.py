"""Per-image rows: one for each image and method, as Parquet bytes that depend on the numbers alone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poise.inference.answers import Answer, Prediction
from poise.inference.results import Failure

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

    def columns(self, image: ImageRef, method: str) -> dict[str, Any]:
        """The columns that say what the row is about."""
        own = {"run": self.run, "model": self.model, "dataset": self.dataset, "seed": self.seed}
        return {**own, "method": method, "id": image.id, "label": image.label}


def entropy(probs: np.ndarray) -> np.ndarray:
    """[..., C] -> [...] in nats; a class of probability 0 adds 0."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))


def rows(stamp: Stamp, image: ImageRef, methods: Sequence[str], outcome: Prediction | Failure) -> list[dict[str, Any]]:
    """One image's rows, one per method; those of a failure have no class, no numbers, and the reason."""
    if isinstance(outcome, Failure):
        return _error_rows(stamp, image, methods, f"{outcome.code}: {outcome.message}")
    made = []
    for method, answer in outcome.answers.items():
        row = {**stamp.columns(image, method), **_numbers(answer)}
        row["correct"] = row["prediction"] == image.label
        made.append(row)
    return made


def _error_rows(stamp: Stamp, image: ImageRef, methods: Sequence[str], error: str) -> list[dict[str, Any]]:
    nothing = dict.fromkeys(("prediction", "init_prediction", "target_prediction"), NO_CLASS)
    unknown = dict.fromkeys(
        ("confidence", "entropy", "init_confidence", "init_entropy", "atfd", "init_atfd"), float("nan")
    )
    flags = {"correct": False, "fallback": False, "error": error}
    return [{**stamp.columns(image, method), **nothing, **unknown, **flags} for method in methods]


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


def _numbers(answer: Answer) -> dict[str, Any]:
    """The columns that say what was answered."""
    probs, start = answer.probs, answer.init_probs
    return {
        "prediction": int(probs.argmax()),
        "confidence": float(probs.max()),
        "entropy": float(entropy(probs)),
        "init_prediction": int(start.argmax()),
        "init_confidence": float(start.max()),
        "init_entropy": float(entropy(start)),
        "target_prediction": int(answer.target_probs.argmax()),
        "atfd": answer.dispersion,
        "init_atfd": answer.init_dispersion,
        "fallback": answer.fallback,
        "error": None,
        **(_all_probs(probs) if len(probs) <= FULL_PROBS_UP_TO else _top_probs(probs)),
    }


def _all_probs(probs: np.ndarray) -> dict[str, np.ndarray | None]:
    return {"probs": probs.astype(np.float32), "top_ids": None, "top_probs": None}


def _top_probs(probs: np.ndarray) -> dict[str, np.ndarray | None]:
    order = np.argsort(-probs, kind="stable")[:TOP]
    return {"probs": None, "top_ids": order.astype(np.int32), "top_probs": probs[order].astype(np.float32)}
