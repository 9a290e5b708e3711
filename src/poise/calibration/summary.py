"""A calibration in words, and as HTML for notebooks."""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from poise.calibration.plots import reliability_svg
from poise.metrics.bootstrap import Interval
from poise.text import counted, first_few

if TYPE_CHECKING:
    from poise.calibration.stored import Calibration, MethodCalibration

_LISTED = 8  # labels with their numbers of images


def label_counts(calibration: Calibration) -> str:
    """Return how many images each label has; labels with few images are named first."""
    labels = calibration.conditions.labels
    found = Counter(next(iter(calibration.methods.values())).labels.tolist())
    counts = sorted(((found[at], label) for at, label in enumerate(labels)), key=lambda pair: pair[0])
    shown = first_few([f"{label} {number}" for number, label in counts], _LISTED)
    single = sum(number == 1 for number, _ in counts)
    few = f", {single} with one image only" if single else ""
    further = calibration.methods[calibration.recommended].further
    above = f" (and {len(further.labels)} above the cut-off {further.cutoff:.4f}, for thresholds)" if further else ""
    return f"{counted(calibration.random, 'image')}{above}, {counted(len(labels), 'label')}{few}: {shown}"


def summary(calibration: Calibration) -> str:
    """Return the images, the methods with their metrics, and the recommendation as text."""
    now = calibration.conditions
    rows = [("method", *_HEADINGS), *((name, *_cells(part)) for name, part in calibration.methods.items())]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    table = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(
        [
            label_counts(calibration),
            "given probabilities"
            if now.given
            else f"model {now.model}, {counted(now.views, 'view')}, template {now.template!r}",
            *table,
            f"Recommended: {calibration.reason}",
        ]
    )


def html(calibration: Calibration) -> str:
    """Return the same as HTML, with a reliability diagram of each method."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("method", *_HEADINGS))
    rows = "".join(
        f"<tr><td>{escape(name)}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in _cells(part)) + "</tr>"
        for name, part in calibration.methods.items()
    )
    figures = "".join(
        f"<figure style='display:inline-block'>{reliability_svg({'before': part.reliability()})}"
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, part in calibration.methods.items()
    )
    return (
        f"<p>{escape(label_counts(calibration))}</p><table><tr>{head}</tr>{rows}</table>"
        f"<p>Recommended: {escape(calibration.reason)}</p>{figures}"
    )


_HEADINGS = (
    "accuracy %",
    "ECE %",
    "confidence - accuracy %",
    "NLL",
    "after",
    "calibrated as it is",
    "seconds per image",
)


def _cells(part: MethodCalibration) -> tuple[str, ...]:
    return (
        _percent(part.before["accuracy"]),
        _percent(part.before["ece"]),
        f"{100 * part.gap[0]:+.1f} (p {part.gap[1]:.2g})",
        f"{part.before['nll'].value:.3f}",
        f"{part.after['nll'].value:.3f}",
        "" if part.unchanged is None else f"{100 * part.unchanged:.0f} %",
        "" if part.seconds is None else f"{part.seconds.value:.3f}",
    )


def _percent(value: Interval) -> str:
    return f"{100 * value.value:.1f} ({100 * value.low:.1f} to {100 * value.high:.1f})"
