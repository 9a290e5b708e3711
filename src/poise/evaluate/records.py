"""Per-image rows: one per image and method, as Parquet bytes that depend only on the numbers."""

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

FULL_PROBS_UP_TO = 200  # classes; with more, a row has only the TOP most probable ones
TOP = 20
NO_CLASS = -1  # prediction of a row that has an error

SCHEMA = pa.schema([
    ("run", pa.string()), ("model", pa.string()), ("dataset", pa.string()), ("method", pa.string()),
    ("seed", pa.int64()), ("id", pa.string()), ("label", pa.int64()),
    ("prediction", pa.int64()), ("confidence", pa.float64()), ("entropy", pa.float64()), ("correct", pa.bool_()),
    ("init_prediction", pa.int64()), ("init_confidence", pa.float64()), ("init_entropy", pa.float64()),
    ("target_prediction", pa.int64()), ("probs", pa.list_(pa.float32())),
    ("top_ids", pa.list_(pa.int32())), ("top_probs", pa.list_(pa.float32())),
    ("atfd", pa.float64()), ("init_atfd", pa.float64()), ("fallback", pa.bool_()), ("error", pa.string()),
])  # fmt: skip


@dataclass(frozen=True)
class ImageRef:
    """The image that a row is about."""

    id: str
    label: int


@dataclass(frozen=True)
class Stamp:
    """The columns that are the same in all rows of a file."""

    run: str
    model: str
    dataset: str
    seed: int

    def columns(self, image: ImageRef, method: str) -> dict[str, Any]:
        """Return the columns that identify a row."""
        return {**vars(self), "method": method, "id": image.id, "label": image.label}


def entropy(probs: np.ndarray) -> np.ndarray:
    """Return the entropy [...] of probabilities [..., C] in nats; a class of probability 0 adds 0."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))


def rows(stamp: Stamp, image: ImageRef, methods: Sequence[str], outcome: Prediction | Failure) -> list[dict[str, Any]]:
    """Return the rows of one image, one per method; those of a failure have an error instead of numbers."""
    if isinstance(outcome, Failure):
        columns = {
            **dict.fromkeys(("prediction", "init_prediction", "target_prediction"), NO_CLASS),
            **dict.fromkeys(
                ("confidence", "entropy", "init_confidence", "init_entropy", "atfd", "init_atfd"), float("nan")
            ),
            "correct": False, "fallback": False, "error": f"{outcome.code}: {outcome.message}",
        }  # fmt: skip
        return [{**stamp.columns(image, method), **columns} for method in methods]
    return [
        {**stamp.columns(image, method), **_numbers(answer), "correct": int(answer.probs.argmax()) == image.label}
        for method, answer in outcome.answers.items()
    ]


def encode(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the rows as Parquet bytes; the same rows always give the same bytes."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, row_group_size=65_536, version="2.6")
    return sink.getvalue()


def read(folder: str | Path) -> pa.Table:
    """Read all rows below a folder (a run, or a folder of runs), in the order of the files' names."""
    parts = sorted(Path(folder).rglob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part, schema=SCHEMA) for part in parts]) if parts else SCHEMA.empty_table()


def _numbers(answer: Answer) -> dict[str, Any]:
    probs, init_probs = answer.probs, answer.init_probs
    top = np.argsort(-probs, kind="stable")[:TOP] if len(probs) > FULL_PROBS_UP_TO else None
    return {
        "prediction": int(probs.argmax()),
        "confidence": float(probs.max()),
        "entropy": float(entropy(probs)),
        "init_prediction": int(init_probs.argmax()),
        "init_confidence": float(init_probs.max()),
        "init_entropy": float(entropy(init_probs)),
        "target_prediction": int(answer.target_probs.argmax()),
        "probs": probs.astype(np.float32) if top is None else None,
        "top_ids": None if top is None else top.astype(np.int32),
        "top_probs": None if top is None else probs[top].astype(np.float32),
        "atfd": answer.dispersion,
        "init_atfd": answer.init_dispersion,
        "fallback": answer.fallback,
        "error": None,
    }
