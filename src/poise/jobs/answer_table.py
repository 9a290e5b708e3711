"""The answers of a batch as the rows of a Parquet part, computed for all images at once.

`poise.inference.to_result` makes the same values one image at a time; a test compares them. Columns and their types are
those of `poise.results.Result`, so a part has what CSV has, and the most probable labels as lists.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from poise.errors import CalibrationImageError
from poise.inference.classifier import Classifier
from poise.inference.guarantees import KNOWN_IMAGE, uniform
from poise.inference.heuristics import UNKNOWN, tensor_matches
from poise.inference.predictor import NOT_FINITE, Answers, outcomes
from poise.inference.to_result import EMPTY, ONE_LABEL
from poise.loading.sources import PlannedImage
from poise.results import COLUMNS, Failure, Result, Results
from poise.text import as_utf8
from poise.types import Answer


def _kind(hint: Any) -> pa.DataType:
    """Return the Arrow type of a field of `Result`; numbers are stored in single precision."""
    if get_origin(hint) is types.UnionType:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return pa.list_(pa.string())
    return {float: pa.float32(), bool: pa.bool_(), int: pa.int64()}.get(
        hint, pa.string()
    )  # the others are str or a Literal of them


_HINTS = {**get_type_hints(Result), **{name: tuple[str, ...] for name in ("yes", "unsure")}}  # these are properties
SCHEMA = pa.schema(
    [
        *((name, _kind(_HINTS[name])) for name in COLUMNS),
        ("notes", _kind(_HINTS["notes"])),
        ("top_labels", pa.list_(pa.string())),
        ("top_probabilities", pa.list_(pa.float32())),
        ("shard", pa.string()),
        ("error_code", pa.string()),
        ("error_message", pa.string()),
    ]
)


@dataclass(frozen=True)
class Shown:
    """What rows contain beside the options of the classifier.

    Attributes:
        top_k: number of the most probable labels.
        threshold: lowest confidence that is answered; None for the classifier's own decision.
    """

    top_k: int = 5
    threshold: float | None = None


def answer_table(
    classifier: Classifier[Any],
    images: Sequence[PlannedImage | Failure],
    answers: Answers | None,
    shard: str,
    shown: Shown,
) -> pa.Table:
    """Return one row per image and method, in the order of the images; one row for an image without an answer."""
    if classifier.tree is not None or classifier.groups or classifier.label_guarantees is not None:
        return _of_results(classifier, images, answers, shard, shown)
    readable = [at for at, image in enumerate(images) if not isinstance(image, Failure)]
    failures = {at: image for at, image in enumerate(images) if isinstance(image, Failure)}
    tables, places = [], []
    if readable and answers is not None:
        planned: list[Any] = [images[at] for at in readable]
        good = torch.stack([answer.probs.isfinite().all(-1) for answer in answers[0].values()]).all(0).cpu().numpy()
        failures |= {
            readable[row]: Failure(planned[row].source, "non_finite", NOT_FINITE) for row in np.flatnonzero(~good)
        }
        if (known := classifier.guarantees.images if classifier.guarantees else ()) and good.any():
            for row in np.flatnonzero(good):
                if planned[row].key in known:
                    good[row] = False
                    failures[readable[row]] = Failure(planned[row].source, CalibrationImageError.code, KNOWN_IMAGE)
        kept = np.flatnonzero(good)
        for number, (name, answer) in enumerate(answers[0].items() if len(kept) else ()):
            columns = _columns(classifier, name, answer, kept, [planned[row] for row in kept], shown)
            tables.append(_table(columns, len(kept), shard))
            places.append(np.array(readable)[kept] * len(answers[0]) + number)
    if failures:
        columns = {
            "source": [as_utf8(failure.source) for failure in failures.values()],
            "error_code": [failure.code for failure in failures.values()],
            "error_message": [as_utf8(failure.message) for failure in failures.values()],
        }
        tables.append(_table(columns, len(failures), shard))
        places.append(np.array(list(failures)) * (len(answers[0]) if answers is not None else 1))
    if not tables:
        return SCHEMA.empty_table()
    return pa.concat_tables(tables).take(np.argsort(np.concatenate(places), kind="stable"))


def _of_results(
    classifier: Classifier[Any],
    images: Sequence[PlannedImage | Failure],
    answers: Answers | None,
    shard: str,
    shown: Shown,
) -> pa.Table:
    """Return the rows of labels in a tree or in groups, or independent ones, from results made one at a time."""
    if classifier.label_guarantees is not None:
        classifier.label_guarantees.check()
    found: list[Results | Failure] = []
    for prediction in outcomes(images, answers):
        outcome = classifier.results(prediction)
        if isinstance(outcome, dict) and shown.threshold is not None:
            outcome = {name: result.decided_at(shown.threshold) for name, result in outcome.items()}
        found.append(outcome)
    return result_table(found, shown.top_k, shard)


def result_table(found: Iterable[Results | Failure], top_k: int, shard: str | None = None) -> pa.Table:
    """Return the rows of results that are made already."""
    rows: list[dict[str, Any]] = []
    for outcome in found:
        if isinstance(outcome, Failure):
            failed = {"source": outcome.source, "error_code": outcome.code, "error_message": as_utf8(outcome.message)}
            rows.append(failed)
            continue
        for result in outcome.values():
            labels, probs = zip(*result.top(top_k), strict=True)
            top = {"top_labels": labels, "top_probabilities": probs}
            rows.append({**{name: getattr(result, name) for name in (*COLUMNS, "notes")}, **top})
    full = [{**row, "source": as_utf8(row["source"]), "shard": shard} for row in rows]
    return pa.Table.from_pylist(full, schema=SCHEMA)


def _table(columns: dict[str, Any], rows: int, shard: str) -> pa.Table:
    arrays = []
    for field in SCHEMA:
        if field.name == "shard":
            arrays.append(pa.repeat(pa.scalar(shard, pa.string()), rows))
        elif (values := columns.get(field.name)) is None:
            arrays.append(pa.nulls(rows, field.type))
        else:
            arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _columns(
    classifier: Classifier[Any],
    method: str,
    answer: Answer[Tensor],
    kept: np.ndarray,
    images: Sequence[PlannedImage],
    shown: Shown,
) -> dict[str, Any]:
    """Return the columns of one method's answers for the images ``kept`` of a batch."""
    labels, guarantees, rows = classifier.labels, classifier.guarantees, torch.from_numpy(kept).to(answer.probs.device)
    names = pa.array(labels, pa.string())
    raw = answer.probs[rows].detach().double()
    added: dict[str, Any] = {}
    notes = [image.notes + ((ONE_LABEL,) if len(labels) == 1 else ()) for image in images]
    probs = raw
    if guarantees is not None:
        on_host = raw.cpu().numpy()
        part, u = guarantees.parts[method], np.array([uniform(image.key) for image in images])
        probs = torch.from_numpy(np.asarray(part.calibrator.apply(on_host), dtype=np.float64))
        top = on_host.max(-1)
        added["raw_confidence"] = top
        notes = [note + guarantees.notes(image.look) for note, image in zip(notes, images, strict=True)]
        if method in guarantees.certificates:
            threshold = guarantees.certificates[method].threshold
            added |= _decided(top >= threshold, threshold)
        if guarantees.coverage is not None:
            sets = part.sets(on_host, guarantees.coverage, u)
            ranked = np.argsort(-on_host, axis=-1, kind="stable")
            inside = np.take_along_axis(np.asarray(sets.members), ranked, -1)
            added["prediction_set"] = _lists(names, ranked[inside], inside.sum(-1))
            notes = [note + ((EMPTY,) if empty else ()) for note, empty in zip(notes, sets.empty, strict=True)]
    best, order = top_labels(probs, max(2, shown.top_k))
    matched = tensor_matches(answer.init_probs[rows].detach().double(), classifier.encoder.scale)
    host: dict[str, np.ndarray] = {
        name: value.cpu().numpy() for name, value in {"best": best, "order": order, "match": matched}.items()
    }
    label, confidence = names.take(pa.array(host["order"][:, 0])), host["best"][:, 0]
    rejected = np.zeros(len(kept), bool) if classifier.reject is None else host["match"] < classifier.reject
    if shown.threshold is not None:
        added |= _decided((confidence >= shown.threshold) & ~rejected, shown.threshold)
    width = min(shown.top_k, len(labels))
    counts = np.full(len(kept), width)
    return {
        "source": [as_utf8(image.source) for image in images],
        "method": pa.repeat(pa.scalar(method, pa.string()), len(kept)),
        "label": _if(rejected, pa.repeat(pa.scalar(UNKNOWN, pa.string()), len(kept)), label),
        "confidence": confidence,
        "margin": confidence - (host["best"][:, 1] if len(labels) > 1 else 0.0),
        "entropy": (0.0 - torch.special.xlogy(probs, probs).sum(-1)).cpu().numpy(),
        "match": host["match"],
        "rejected": _if(rejected, label, pa.nulls(len(kept), pa.string())),
        "fallback": answer.fallback[rows].reshape(-1).cpu().numpy().astype(bool),
        "notes": notes,
        "top_labels": _lists(names, host["order"][:, :width].reshape(-1), counts),
        "top_probabilities": _lists(pa.array(host["best"][:, :width].reshape(-1), pa.float32()), None, counts),
        **added,
    }


def top_labels(probs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest probabilities [B, k] and their positions, of equal ones the first, as a stable sort would.

    >>> top_labels(torch.tensor([[0.25, 0.5, 0.25, 0.0]]), 2)[1].tolist()
    [[1, 0]]
    """
    classes = probs.shape[-1]
    if count + 1 >= classes:
        values, order = probs.sort(dim=-1, descending=True, stable=True)
        return values[:, :count], order[:, :count]
    values, order = probs.topk(count + 1, dim=-1)
    tied = (values[:, 1:] == values[:, :-1]).any(-1).nonzero().reshape(-1)  # in any order, perhaps beyond the last
    if len(tied):
        again, places = probs[tied].sort(dim=-1, descending=True, stable=True)
        values[tied], order[tied] = again[:, : count + 1], places[:, : count + 1]
    return values[:, :count], order[:, :count]


def _decided(answered: np.ndarray, threshold: float | None) -> dict[str, Any]:
    words: tuple[Literal["abstain"], Literal["answer"]] = ("abstain", "answer")
    decisions = pa.array(words, pa.string()).take(pa.array(answered.astype(np.int64)))
    return {"decision": decisions, "threshold": np.full(len(answered), threshold)}


def _lists(values: pa.Array, positions: np.ndarray | None, counts: np.ndarray) -> pa.Array:
    """Return lists of ``counts`` values each, of those at the positions."""
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    chosen = values if positions is None else values.take(pa.array(positions))
    return pa.ListArray.from_arrays(offsets, chosen)


def _if(condition: np.ndarray, yes: pa.Array, no: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.if_else(pa.array(condition), yes, no)
