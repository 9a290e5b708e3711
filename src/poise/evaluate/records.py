"""Records of a run: one row per image and method, stored as reproducible Parquet bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poise.data import Item
from poise.inference.answers import Predictions, of_image
from poise.results import Failure
from poise.types import Answer

FULL_PROBS_UP_TO = 200  # classes; with more, a row contains only the TOP most probable ones
TOP = 20
NO_CLASS = -1  # prediction of a row with an error

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
        ("pixels", pa.string()),  # hash of the image that was read, independent of name and file format
        ("labels", pa.list_(pa.int32())),  # of independent labels: all that the image has, ``label`` first
        ("logits", pa.list_(pa.float32())),  # of independent labels; ``probs`` are then sigmoids, if the model has any
    ]
)


def entropy(probs: np.ndarray) -> np.ndarray:
    """Return the entropy [...] of probabilities [..., C], in nats."""
    safe = np.where(probs > 0, probs, 1.0)
    return np.asarray(-(probs * np.log(safe)).sum(-1))


def rows(
    columns: Mapping[str, Any],
    item: Item,
    methods: Sequence[str],
    outcome: Predictions | Failure,
    *,
    full: bool = False,
    independent: bool | None = None,
) -> list[dict[str, Any]]:
    """Return one row per method for an image; the rows of a failure contain the reason, no class and no numbers.

    Args:
        columns: the columns run, model, dataset and seed.
        item: the image.
        methods: the names of the methods, for a failure.
        outcome: the answers by method, or the failure.
        full: store all probabilities, whatever their number.
        independent: of labels that apply independently: whether the model has probabilities of single labels.
    """
    columns = {**columns, "id": item.id, "label": item.label}
    if independent is not None:
        columns["labels"] = [item.label, *item.others]
    if isinstance(outcome, Failure):
        numbers = _error_numbers(f"{outcome.code}: {outcome.message}")
        return [{**columns, "method": method, **numbers} for method in methods]
    columns["pixels"] = of_image(outcome).key
    if independent is not None:
        return [
            {**columns, "method": method, **_independent(prediction, columns["labels"], sigmoid=independent)}
            for method, prediction in outcome.items()
        ]
    return [
        {**columns, "method": method, **_numbers(prediction, item.label, full)}
        for method, prediction in outcome.items()
    ]


def encode(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the rows as Parquet; the same rows always give the same bytes."""
    table = pa.Table.from_pylist(list(rows), schema=SCHEMA)
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", compression_level=3, row_group_size=65_536, version="2.6")
    return sink.getvalue()


def read(folder: str | Path) -> pa.Table:
    """Return all rows below a folder (of one run or of several), sorted by file name."""
    parts = sorted(Path(folder).rglob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part, schema=SCHEMA) for part in parts]) if parts else SCHEMA.empty_table()


def _error_numbers(error: str) -> dict[str, Any]:
    classes = dict.fromkeys(("prediction", "init_prediction", "target_prediction"), NO_CLASS)
    unknown = ("confidence", "entropy", "init_confidence", "init_entropy", "atfd", "init_atfd")
    return {**classes, **dict.fromkeys(unknown, float("nan")), "correct": False, "fallback": False, "error": error}


def stores_all(classes: int, full: bool) -> bool:
    """Return whether rows contain all probabilities of so many classes."""
    return full or classes <= FULL_PROBS_UP_TO


def _numbers(answer: Answer[np.ndarray], label: int, full: bool) -> dict[str, Any]:
    probs, init_probs = answer.probs, answer.init_probs
    return {
        "prediction": int(probs.argmax()),
        "confidence": float(probs.max()),
        "entropy": float(entropy(probs)),
        "correct": int(probs.argmax()) == label,
        "init_prediction": int(init_probs.argmax()),
        "init_confidence": float(init_probs.max()),
        "init_entropy": float(entropy(init_probs)),
        "target_prediction": int(answer.target_probs.argmax()),
        "atfd": answer.dispersion,
        "init_atfd": answer.init_dispersion,
        "fallback": bool(answer.fallback),
        "error": None,
        **_probs(probs, full),
    }


def _independent(answer: Answer[np.ndarray], labels: Sequence[int], *, sigmoid: bool) -> dict[str, Any]:
    found = _numbers(answer, labels[0], False)
    logits = answer.logits.astype(np.float64)
    chances = (1 / (1 + np.exp(-np.clip(logits, -500, 500)))).astype(np.float32) if sigmoid else None
    right = found["prediction"] in labels
    return {**found, "correct": right, "probs": chances, "top_ids": None, "top_probs": None, "logits": logits}


def _probs(probs: np.ndarray, full: bool) -> dict[str, np.ndarray | None]:
    if stores_all(len(probs), full):
        return {"probs": probs.astype(np.float32), "top_ids": None, "top_probs": None}
    order = np.argsort(-probs, kind="stable")[:TOP]
    return {"probs": None, "top_ids": order.astype(np.int32), "top_probs": probs[order].astype(np.float32)}
