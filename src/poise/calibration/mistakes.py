"""Which labelled images a classifier gets wrong: by label, by pairs of labels that it confuses, and one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.calibration.shares import proportion

if TYPE_CHECKING:
    from poise.calibration.evaluation import Answered


@dataclass(frozen=True)
class Listing:
    """Rows of texts with a title, for a terminal or a page."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def label_counts(part: Answered, labels: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return each label with the number of its images and of those that are answered with it, the worst share first."""
    images, right = Counter(part.labels.tolist()), Counter(part.labels[part.correct].tolist())
    order = sorted(images, key=lambda at: (right[at] / images[at], -images[at], at))
    return [(labels[at], images[at], right[at]) for at in order]


def confusions(part: Answered, labels: Sequence[str]) -> list[tuple[str, str, int]]:
    """Return the pairs of a label and another one that its images were answered with, the most frequent first."""
    wrong = ~part.correct
    pairs = Counter(zip(part.labels[wrong].tolist(), part.probs.argmax(1)[wrong].tolist(), strict=True))
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))
    return [(labels[truth], labels[answer], number) for (truth, answer), number in ordered]


def answers(part: Answered, labels: Sequence[str], sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return each image with its label, its answer and the calibrated confidence, in order."""
    table = {
        "source": sources,
        "label": [labels[at] for at in part.labels],
        "answer": [labels[at] for at in part.probs.argmax(1)],
        "confidence": part.probs.max(1).tolist(),
        "correct": part.correct.tolist(),
    }
    if part.answered is not None:
        table["decision"] = ["answer" if each else "abstain" for each in part.answered]
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def mistakes(part: Answered, labels: Sequence[str], sources: Sequence[str]) -> list[dict[str, Any]]:
    """Return the images of `answers` that are wrong, the surest first."""
    rows = answers(part, labels, sources)
    order = np.argsort(-part.probs.max(1), kind="stable")
    return [
        {name: value for name, value in rows[at].items() if name != "correct"} for at in order if not part.correct[at]
    ]


def listings(part: Answered, labels: Sequence[str], sources: Sequence[str], limit: int) -> list[Listing]:
    """Return what people look at, at most ``limit`` rows of each; nothing is listed if all answers are right."""
    wrong = mistakes(part, labels, sources)
    if not wrong:
        return []
    by_label, pairs = label_counts(part, labels), confusions(part, labels)
    shares = [(label, images, proportion(right, images)) for label, images, right in by_label[:limit]]
    return [
        Listing(
            f"Accuracy of each label, the lowest first{_of(by_label, limit)}",
            ("Label", "Images", "Accuracy"),
            tuple(
                (label, str(images), f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})")
                for label, images, share in shares
            ),
        ),
        Listing(
            f"Most confused{_of(pairs, limit)}",
            ("Label", "Answer", "Images"),
            tuple((truth, answer, str(number)) for truth, answer, number in pairs[:limit]),
        ),
        Listing(
            f"Wrong answers, the surest first{_of(wrong, limit)}",
            ("Image", "Label", "Answer", "Confidence", *(("Decision",) if "decision" in wrong[0] else ())),
            tuple(
                tuple(f"{value:.3f}" if isinstance(value, float) else value for value in row.values())
                for row in wrong[:limit]
            ),
        ),
    ]


def _of(rows: Sequence[Any], limit: int) -> str:
    return f" ({limit} of {len(rows):,})" if len(rows) > limit else ""
