"""`poise calibrate`: compare and calibrate methods on labelled images of the user's own task."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.listing import show
from poise.cli.shared_options import (
    AugMix,
    BatchSize,
    Device,
    Dtype,
    Init,
    LabelsFile,
    LongLabel,
    Model,
    OnLongLabel,
    Seed,
    Template,
    Threads,
    Views,
    labels_from,
)
from poise.cli.sink import watched
from poise.cli.verbose import Verbose
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.report.table import Cell, Line, Table

if TYPE_CHECKING:
    from poise.calibration import Calibration, MethodCalibration
    from poise.metrics import Interval

_MAX_ROWS = 1_000_000  # of a CSV file, in case it is a device that never ends
_BINS = 10  # of the reliability table
_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2)  # shares of wrong answers in the printed table


def calibrate(
    images: Annotated[Path, typer.Argument(help="Folder with one subfolder per label, or CSV file with the columns "
                                                "path and label.")],
    out: Annotated[Path, typer.Option(help="Output file (JSON), for `poise classify --calibration`.")],
    labels: Annotated[
        str | None, typer.Option(help="Comma-separated labels.", show_default="those of the images")
    ] = None,
    labels_file: LabelsFile = None,
    missing_labels: Annotated[bool, typer.Option(help="Allow labels without images.")] = False,
    model: Model = "pocket",
    method: Annotated[str, typer.Option(help="Comma-separated methods to compare.")] = "zero-shot,kld+cats",
    coverage: Annotated[str, typer.Option(help="Wanted coverages of prediction sets, comma-separated.")] = "0.9",
    max_error: Annotated[
        str, typer.Option(help="Wanted shares of wrong answers, comma-separated; too few images are an error.")
    ] = "",
    confidence: Annotated[float, typer.Option(help="Confidence of the certified thresholds.")] = 0.95,
    template: Template = None, init: Init = "template", views: Views = 64, augmix: AugMix = False, seed: Seed = 0,
    device: Device = "auto", dtype: Dtype = "auto", batch_size: BatchSize = None,
    on_long_label: OnLongLabel = LongLabel.error, threads: Threads = None,
    verbose: Verbose = False,
) -> None:  # fmt: skip
    """Compare methods on labelled images and calibrate them, for confidences and decisions with a guarantee."""
    from poise.calibration.levels import exact_level

    wanted, errors = _levels("--coverage", coverage), _levels("--max-error", max_error)
    exact_level("--confidence", confidence)
    paths, truth, known = _labelled(images)
    if labels is not None or labels_file is not None:
        known = labels_from(labels, labels_file)
    from poise.inference import calibrating
    from poise.inference.auto_views import FULL, choose_views, with_views
    from poise.inference.classifier import Classifier
    from poise.inference.options import AUTO
    from poise.methods import expand
    from poise.prompts import check_labels

    # All that does not depend on the model is checked before it is loaded.
    methods = list(expand(method))
    calibrating.check_images(check_labels(known), truth, missing_labels=missing_labels)
    limits: Any = {"coverage": wanted, "max_error": errors, "delta": 1 - confidence}
    calibrating.check_number(len(paths), methods=len(methods), **limits)
    classifier: Classifier = Classifier(
        known, model, methods, template=template, init=init, views=FULL if views == AUTO else views, augmix=augmix,
        seed=seed, device=device, dtype=dtype, batch_size=batch_size, on_long_label=on_long_label.value,
    )  # fmt: skip
    if views == AUTO:
        choice = choose_views(classifier, paths)
        classifier = with_views(classifier, choice.views)
        typer.echo(f"poise: --views auto: {choice.reason}", err=True)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        calibration = calibrating.calibrate(
            classifier, paths, truth, missing_labels=missing_labels, watched=watched, **limits
        )
    for note in notes:
        typer.echo(f"poise: {note.message}", err=True)
    calibration.save(out)
    for table in tables(calibration, errors or list(_ERRORS), wanted):
        show(table)
    lost = [f"{100 * error:g} % ({name})" for name, part in calibration.methods.items() for error in errors
            if part.certificate(error).threshold is None]  # fmt: skip
    if lost:
        typer.echo(f"poise: no threshold can be certified for {', '.join(lost)}: too many confident answers are wrong, "
                   "or there are too few images.", err=True)  # fmt: skip
    typer.echo(f"\nRecommended: {calibration.reason}\nWritten: {out}. Use it with: poise classify IMAGES "
               f"--calibration {out}")  # fmt: skip


def tables(calibration: Calibration, errors: list[float], coverages: list[float]) -> list[Table]:
    """Return what `poise calibrate` prints: the methods, their calibrators, and what can be promised."""
    parts = calibration.methods
    compared = tuple(
        Line((Cell(title), *(_cell(value(part), factor, digits) for part in parts.values())))
        for title, factor, digits, value in _METRICS
    )
    calibrators = tuple(Line.of(name, part.calibrator.name, _parameters(part)) for name, part in parts.items())
    reasons = tuple(f"{name}: {part.reason}." for name, part in parts.items())
    promised = tuple(_promise(name, part, error) for name, part in parts.items() for error in errors)
    sets = tuple(_set_line(name, part, coverage) for name, part in parts.items() for coverage in coverages)
    return [
        Table(f"Methods on {len(calibration)} images, with 95 % confidence intervals", ("", *parts), compared, (
            "After: calibrated; each image without using its own label (cross-validation). Floor: the ECE of perfectly "
            "calibrated answers to so few images.",), texts=1),
        _reliability(calibration),
        Table("Calibrators", ("Method", "Calibrator", "Parameters"), calibrators, reasons, texts=3),
        Table("Thresholds", ("Method", "Wrong at most", "Answer from raw confidence", "Answered here", "Wrong here"),
              promised, (
                  f"With {100 * calibration.confidence:.4g} % confidence, for images like these, if errors do not "
                  "become rarer as the confidence falls, and if you choose the level without looking at this table.",
                  "Raw: before calibration.")),
        Table("Prediction sets", ("Method", "Coverage", "Labels from raw probability"), sets,
              ("They contain the correct label for this share of images like these, on average, if you choose the "
               "method without looking at these tables.",)),
    ]  # fmt: skip


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


def _levels(option: str, text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        levels = [0.0]
    if not all(0 < level < 1 for level in levels):
        raise InvalidOptionError(f"{option} is '{text}'.", hint="Give numbers between 0 and 1, such as 0.9,0.95.")
    return levels


def _labelled(images: Path) -> tuple[list[Path], list[str], list[str]]:
    """Return the paths of the images, their labels, and the labels in order."""
    if images.is_dir():
        from poise.data import open_dataset

        found = open_dataset(f"folder:{images}")
        truth = [found.classes[item.label] for item in found.items]
        return [Path(str(item.source())) for item in found.items], truth, list(found.classes)
    hint = "Give a folder with one subfolder per label, or a CSV file in UTF-8 whose first line is: path,label"
    try:
        with images.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for _, row in zip(range(_MAX_ROWS), reader, strict=False)]
    except (OSError, ValueError, csv.Error) as problem:
        raise InvalidDatasetError(f"'{images}' can't be read as labelled images: {problem}.", hint=hint) from None
    if missing := [column for column in ("path", "label") if rows and column not in (reader.fieldnames or ())]:
        columns = ", ".join(map(repr, reader.fieldnames or ()))
        raise InvalidDatasetError(f"'{images}' has no column {missing[0]}, but {columns[:200]}.", hint=hint)
    for number, row in enumerate(rows, start=2):
        for column in ("path", "label"):
            if not (row.get(column) or "").strip():
                raise InvalidDatasetError(f"'{images}' has no {column} in line {number}.", hint=hint)
    paths, truth = [images.parent / row["path"] for row in rows], [row["label"].strip() for row in rows]
    if not rows:
        raise InvalidDatasetError(f"'{images}' has no rows.", hint=hint)
    return paths, truth, list(dict.fromkeys(truth))
