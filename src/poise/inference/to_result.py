"""From the arrays of one method's answer to a `Result`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poise.calibration import Tree
from poise.inference.guarantees import Guarantees
from poise.inference.heuristics import UNKNOWN, match_of
from poise.results import Details, Result
from poise.types import Answer, DualEncoder

EMPTY = "no label is probable enough for the prediction set, so it contains the most probable one"
ONE_LABEL = "there is one label only, so its probability is 1 for any image"


def to_result(
    answer: Answer[np.ndarray],
    method: str,
    labels: tuple[str, ...],
    encoder: DualEncoder,
    guarantees: Guarantees | None,
    reject: float | None,
    details: bool,
    tree: Tree | None = None,
) -> Result:
    """Return one method's answer for one image, calibrated if there are guarantees."""
    probs = answer.probs
    added: dict[str, Any] = {"notes": answer.notes + ((ONE_LABEL,) if len(labels) == 1 else ())}
    if guarantees:
        probs, calibrated = guarantees.answer(method, answer.probs, answer.key)
        added["notes"] += guarantees.notes(answer.look)
        added |= {
            "calibrated": calibrated,
            "raw_confidence": float(answer.probs.max()),
            **guarantees.decision(method, answer.probs),
        }
        if guarantees.coverage is not None:
            added["prediction_set"], empty = calibrated.set_at(guarantees.coverage)
            added["notes"] += (EMPTY,) if empty else ()
    if tree is not None:
        values, path = tree.probabilities(probs[None])[0, len(labels) :], tree.descend(answer.probs[None])
        added["nodes"] = _ranked(tree.names[len(labels) :], values)
        added["path"] = tuple(tree.names[node] for node in path.nodes[0] if node >= 0)
    ranked = _ranked(labels, probs)
    best, top = next(iter(ranked)), list(ranked.values())
    # Under the initial prompt: rules and post-hoc steps have logits that are not cosines times the scale.
    matched = match_of(answer.init_probs, encoder.scale)
    rejected = reject is not None and matched < reject
    return Result(
        label=UNKNOWN if rejected else best,
        confidence=top[0],
        probabilities=ranked,
        entropy=0.0 - math.fsum(p * math.log(p) for p in top if p > 0),  # 0 instead of -0 if certain
        margin=top[0] - (top[1] if len(top) > 1 else 0.0),
        method=method,
        source=answer.source,
        fallback=bool(answer.fallback),
        degenerate=len(top) == 1,
        match=matched,
        rejected=best if rejected else None,
        details=_details(answer, labels, encoder) if details else None,
        **added,
    )


def _details(answer: Answer[np.ndarray], labels: tuple[str, ...], encoder: DualEncoder) -> Details:
    return Details(
        init_probabilities=_by_label(labels, answer.init_probs),
        target_probabilities=_by_label(labels, answer.target_probs),
        view_confidences=tuple(answer.confidences.tolist()),
        view_temperatures=tuple(answer.temperatures.tolist()),
        view_labels=tuple(labels[at] for at in answer.view_labels),
        selected_views=tuple(answer.selected.tolist()),
        losses=tuple(answer.losses.tolist()),
        logits=_by_label(labels, answer.logits),
        scale=encoder.scale,
        bias=encoder.bias,
    )


def _ranked(labels: tuple[str, ...], values: np.ndarray) -> dict[str, float]:
    return dict(sorted(_by_label(labels, values).items(), key=lambda item: -item[1]))


def _by_label(labels: tuple[str, ...], values: np.ndarray) -> dict[str, float]:
    return dict(zip(labels, values.tolist(), strict=True))
