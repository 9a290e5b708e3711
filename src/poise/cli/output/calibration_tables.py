"""What `poise calibrate` prints: the methods, their calibrators, and what can be promised."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from poise.calibration.estimates import SHARES, surest
from poise.report.tables.table import Cell, Line, Table
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration import Calibration, MethodCalibration
    from poise.metrics import Interval

_BINS = 10  # of the reliability table


def tables(calibration: Calibration, errors: list[float], coverages: list[float]) -> list[Table]:
    """Return the tables, with thresholds for these shares of wrong answers and sets with these coverages."""
    parts = calibration.methods
    compared = tuple(
        Line((Cell(title), *(_cell(value(part), factor, digits) for part in parts.values())))
        for title, factor, digits, value in _METRICS
    )
    gaps = [part.gap for part in parts.values()]
    compared = (
        *compared[:3],
        Line((Cell("Confidence - accuracy %"), *(Cell(f"{100 * gap:+.1f}", f"(p {p:.2g})") for gap, p in gaps))),
        *compared[3:],
    )
    times = [part.seconds for part in parts.values() if part.seconds is not None]
    if len(times) == len(parts):
        compared += (Line((Cell("Seconds per image"), *(_cell(seconds, 1, 3) for seconds in times))),)
    calibrators = tuple(Line.of(name, _unchanged(part), _parameters(part)) for name, part in parts.items())
    promised = tuple(_promise(name, part, error) for name, part in parts.items() for error in errors)
    sets = tuple(set_line(name, part, coverage) for name, part in parts.items() for coverage in coverages)
    images = counted(calibration.random, "image")
    return [
        Table(
            f"Methods on {images}, with 95 % confidence intervals",
            ("", *parts),
            compared,
            (
                "After: calibrated; each image without using its own label (cross-validation). Floor: the ECE of "
                "perfectly calibrated answers to so few images; the interval of ECE is one for so few images, too.",
                "Mean confidence minus accuracy: above 0 where answers are over-confident. p: how probable such a "
                "difference is, on either side, if every confidence is right (exact).",
                _sampling(calibration),
            ),
            texts=1,
        ),
        _reliability(calibration),
        Table(
            "Calibrators",
            ("Method", "Calibrated as it is", "If not"),
            calibrators,
            ("Probability that confidences need no change, and the fitted curve otherwise, with 95 % intervals.",),
            texts=3,
        ),
        Table(
            "Thresholds",
            ("Method", "Wrong at most", "Answer from raw confidence", "Answered here", "Wrong here"),
            promised,
            (
                f"With {100 * calibration.confidence:.4g} % confidence, for images like these, if you choose the level "
                "without looking at this table.",
                "Raw: before calibration.",
                *_cutoffs(calibration),
            ),
        ),
        Table(
            "Errors among the surest answers (estimates, no guarantee)",
            ("Method", "Answered", "Wrong", "Error %"),
            tuple(_estimate(name, part, share) for name, part in parts.items() for share in SHARES),
            ("In parentheses: 95 % Clopper-Pearson intervals.",),
        ),
        Table(
            "Prediction sets",
            ("Method", "Coverage", "Labels from raw probability"),
            sets,
            (
                "They contain the correct label for this share of images like these, on average, if you choose the "
                "method without looking at these tables.",
            ),
        ),
    ]


def in_short(calibration: Calibration, errors: list[float]) -> str:
    """Return two sentences: how often the recommended method is right, and what is certified of these levels."""
    name = calibration.recommended
    part = calibration.methods[name]
    value, low, high = (100 * share for share in part.before["accuracy"])
    right = f"{name} is right on {value:.1f} % of {counted(calibration.random, 'image')} ({low:.1f} to {high:.1f})."
    found = [each for each in map(part.certificate, sorted(errors)) if each.threshold is not None]
    if not found:
        return f"In short: {right} No threshold can be certified for at most {100 * max(errors):g} % wrong answers."
    best, sure = found[0], f"{100 * calibration.confidence:.4g} %"
    return (
        f"In short: {right} From a raw confidence of {best.threshold:.4f} on ({best.answered} of {best.images} images) "
        f"at most {100 * best.max_error:g} % of the answers are wrong, with {sure} confidence if you chose this share "
        "before you saw the table."
    )


_METRICS: tuple[tuple[str, float, int, Callable[[MethodCalibration], Interval]], ...] = (
    ("Accuracy %", 100, 1, lambda part: part.before["accuracy"]),
    ("ECE %", 100, 1, lambda part: part.before["ece"]),
    ("  floor", 100, 1, lambda part: part.before["ece_floor"]),
    ("NLL", 1, 3, lambda part: part.before["nll"]),
    ("NLL after", 1, 3, lambda part: part.after["nll"]),
    ("Brier", 1, 3, lambda part: part.before["brier"]),
    ("Brier after", 1, 3, lambda part: part.after["brier"]),
)


def _sampling(calibration: Calibration) -> str:
    """Return how far off confidences may still be after calibration."""
    accuracy = calibration.methods[calibration.recommended].before["accuracy"].value
    spread = 100 * math.sqrt(accuracy * (1 - accuracy) / calibration.random)
    return (
        f"No ECE after calibration is shown: these images can't tell whether they are easier than others. So few show "
        f"the accuracy to about {spread:.1f} points (one standard error), and confidences no better."
    )


def _cutoffs(calibration: Calibration) -> list[str]:
    """Return which images thresholds are certified on, where these are not all."""
    further = calibration.methods[calibration.recommended].further
    return [f"Certified on the labelled images with a confidence above {further.cutoff:.4f}."] if further else []


def _unchanged(part: MethodCalibration) -> str:
    return "" if part.unchanged is None else f"{100 * part.unchanged:.0f} %"


def _reliability(calibration: Calibration) -> Table:
    """Return how often the recommended method is right at each confidence."""
    lines, bins = [], calibration.methods[calibration.recommended].reliability(_BINS)
    for at in range(_BINS):
        count = int(bins.count[at])
        right = [str(count), f"{bins.confidence[at]:.2f}", f"{bins.accuracy[at]:.2f}"] if count else ["", "", ""]
        lines.append(Line.of(f"{at / _BINS:.1f} to {(at + 1) / _BINS:.1f}", *right))
    columns = ("Confidence", "images", "mean", "right")
    note = "Before calibration. Of answers with this mean confidence, the share that is right."
    return Table(f"Reliability of {calibration.recommended}", columns, tuple(lines), (note,), texts=1)


def _cell(value: Interval, factor: float, digits: int) -> Cell:
    number, low, high = (f"{factor * item:.{digits}f}" for item in value)
    return Cell(number, f"({low} to {high})")


def _parameters(part: MethodCalibration) -> str:
    values = (f"{name} {_text(value)}" for name, value in part.intervals.items())
    return ", ".join(values)


def _text(value: Interval) -> str:
    return f"{value.value:.3g} ({value.low:.3g} to {value.high:.3g})"


def _promise(name: str, part: MethodCalibration, error: float) -> Line:
    found = part.certificate(error)
    if found.threshold is None:
        return Line.of(name, f"{100 * error:g} %", "can't be certified", "", "")
    share = f"{found.answered} of {found.images}"
    return Line.of(name, f"{100 * error:g} %", f"{found.threshold:.4f}", share, f"{found.errors}")


def _estimate(name: str, part: MethodCalibration, share: float) -> Line:
    found = surest(part.confidence, part.correct, share)
    answered = f"surest {100 * share:g} %: {found.answered}"
    error = Cell(f"{100 * found.rate:.1f}", f"({100 * found.low:.1f} to {100 * found.high:.1f})")
    return Line((Cell(name), Cell(answered), Cell(str(found.errors)), error))


def set_line(name: str, part: MethodCalibration, coverage: float) -> Line:
    """Return the line of a method's prediction sets with one coverage."""
    from poise.calibration import quantile

    least = math.exp(-quantile(part.scores["lac"], coverage))
    return Line.of(name, f"{100 * coverage:g} %", f"{least:.4f}" if least >= 0.001 else f"{least:.1e}")
