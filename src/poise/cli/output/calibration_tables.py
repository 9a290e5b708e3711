"""What `poise calibrate` prints: the methods, their calibrators, and what can be promised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
    calibrators = tuple(Line.of(name, part.calibrator.name, _parameters(part)) for name, part in parts.items())
    reasons = tuple(f"{name}: {part.reason}." for name, part in parts.items())
    promised = tuple(_promise(name, part, error) for name, part in parts.items() for error in errors)
    sets = tuple(_set_line(name, part, coverage) for name, part in parts.items() for coverage in coverages)
    images = counted(len(calibration), "image")
    return [
        Table(
            f"Methods on {images}, with 95 % confidence intervals",
            ("", *parts),
            compared,
            (
                "After: calibrated; each image without using its own label (cross-validation). Floor: the ECE of "
                "perfectly calibrated answers to so few images.",
            ),
            texts=1,
        ),
        _reliability(calibration),
        Table("Calibrators", ("Method", "Calibrator", "Parameters"), calibrators, reasons, texts=3),
        Table(
            "Thresholds",
            ("Method", "Wrong at most", "Answer from raw confidence", "Answered here", "Wrong here"),
            promised,
            (
                f"With {100 * calibration.confidence:.4g} % confidence, for images like these, if errors do not "
                "become rarer as the confidence falls, and if you choose the level without looking at this table.",
                "Raw: before calibration.",
            ),
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


_METRICS: tuple[tuple[str, float, int, Callable[[MethodCalibration], Interval]], ...] = (
    ("Accuracy %", 100, 1, lambda part: part.before["accuracy"]),
    ("ECE %", 100, 1, lambda part: part.before["ece"]),
    ("  floor", 100, 1, lambda part: part.before["ece_floor"]),
    ("ECE % after", 100, 1, lambda part: part.after["ece"]),
    ("  floor", 100, 1, lambda part: part.after["ece_floor"]),
    ("NLL", 1, 3, lambda part: part.before["nll"]),
    ("NLL after", 1, 3, lambda part: part.after["nll"]),
    ("Brier", 1, 3, lambda part: part.before["brier"]),
    ("Brier after", 1, 3, lambda part: part.after["brier"]),
    ("Seconds per image", 1, 3, lambda part: part.seconds),
)


def _reliability(calibration: Calibration) -> Table:
    """Return how often the recommended method is right at each confidence."""
    lines = []
    for at in range(_BINS):
        cells = [f"{at / _BINS:.1f} to {(at + 1) / _BINS:.1f}"]
        for bins in calibration.methods[calibration.recommended].reliability(_BINS):
            count = int(bins.count[at])
            right = [f"{bins.confidence[at]:.2f}", f"{bins.accuracy[at]:.2f}"] if count else ["", ""]
            cells += [str(count) if count else "", *right]
        lines.append(Line.of(*cells))
    columns = ("Confidence", "images", "mean", "right", "images after", "mean after", "right after")
    note = "Of answers with this mean confidence, the share that is right: calibrated where both are equal."
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


def _set_line(name: str, part: MethodCalibration, coverage: float) -> Line:
    from poise.calibration import quantile

    return Line.of(name, f"{100 * coverage:g} %", f"{1 - quantile(part.scores['lac'], coverage):.4f}")
