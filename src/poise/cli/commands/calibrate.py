"""`poise calibrate`: compare and calibrate methods on labelled images of the user's own task."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from poise.cli.commands.listing import show
from poise.cli.input.job_options import stored_in, with_stored
from poise.cli.input.label_list import read_drawn
from poise.cli.input.labelled_images import check_truth, read_labelled
from poise.cli.input.number_files import (
    Features,
    Logits,
    Probabilities,
    Scale,
    Text,
    check_numbers,
    given_probabilities,
    read_truth,
)
from poise.cli.input.option_parameters import VIEWS_OR_AUTO, Chosen, takes_options
from poise.cli.input.shared_options import LabelsFile, Threads, labels_from, written_labels
from poise.cli.input.tagged_images import read_tagged
from poise.cli.output.calibration_tables import in_short, tables
from poise.cli.output.cost_note import cost_note
from poise.cli.output.skipped_files import say_skipped_labelled
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.progress import watched
from poise.report.tables.table import Line, Table

if TYPE_CHECKING:
    from poise.calibration import Calibration
    from poise.calibration.independent import IndependentCalibration
    from poise.inference.classifier import Classifier

_LEVELS = (0.7, 0.8, 0.9, 0.95)  # of precision and recall in the printed lines
_ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2)  # shares of wrong answers in the printed table


@takes_options(
    "calibrate",
    views=VIEWS_OR_AUTO,
    method={"help": "Comma-separated methods to compare.", "default": "zero-shot,kld+cats"},
)
def calibrate(
    *,
    ctx: typer.Context,
    images: Annotated[
        Path | None,
        typer.Argument(
            help="Folder with one subfolder per label, CSV file with the columns path and label, or labelled features; "
            "with --independent also CSV with path and labels (a;b), or JSON in COCO's form."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output file (JSON), for `poise classify --calibration`.")],
    labels: Annotated[
        str | None, typer.Option(help="Comma-separated labels.", show_default="those of the images")
    ] = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    probabilities: Probabilities = None,
    logits: Logits = None,
    truth: Annotated[
        Path | None,
        typer.Option(help="Correct labels of the rows: positions, or a table with the column label."),
    ] = None,
    features: Features = None,
    text: Text = None,
    scale: Scale = None,
    coverage: Annotated[str, typer.Option(help="Wanted coverages of prediction sets, comma-separated.")] = "0.9",
    max_error: Annotated[
        str, typer.Option(help="Wanted shares of wrong answers, comma-separated; too few images are an error.")
    ] = "",
    confidence: Annotated[float, typer.Option(help="Confidence of the certified thresholds.")] = 0.95,
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare methods on labelled images and calibrate them, for confidences and decisions with a guarantee.

    Without images: calibrate given probabilities or logits, or features of images and texts.
    """
    from poise.calibration.levels import exact_level
    from poise.calibration.summary import label_counts

    coverages, errors = _levels("--coverage", coverage), _levels("--max-error", max_error)
    exact_level("--confidence", confidence)
    limits: Any = {"coverage": coverages, "max_error": errors, "confidence": confidence}
    names = None if labels is None and labels_file is None else labels_from(labels, labels_file)
    chosen = {"--probabilities": probabilities, "--logits": logits, "--features": features, "--text": text}
    chosen |= {"--truth": truth}
    numbers: dict[str, Any] = {option: file for option, file in chosen.items() if file is not None}
    numbers |= {} if scale is None else {"--scale": scale}
    if images is not None:
        say_skipped_labelled(images, quiet=quiet)
    if numbers:
        _check_alone(images, {*numbers}, [name for name in options if _typed(ctx, name)])
    elif options["independent"] and images is not None:
        options = options if _typed(ctx, "method") else {**options, "method": "zero-shot"}
        _independent(images, names, options, out, confidence, quiet)
        return
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        if numbers:
            calibration = _of_numbers(numbers, names, limits)
        elif images is not None:
            options = with_stored(ctx, options, stored_in(images))
            calibration = _of_images(images, names, options, quiet, limits)
        else:
            raise InvalidOptionError(
                "There is nothing to calibrate on.", hint="Give a folder of labelled images, or --probabilities."
            )
    for note in notes:
        remark(str(note.message))
    calibration.save(out)
    others = "" if numbers or names else " Give --labels-file if images may have others."
    show(Table("", (), (), (f"{label_counts(calibration)}.{others}",)))
    typer.echo()
    _show(calibration, errors, coverages)
    if numbers:
        typer.echo(f"\nWritten: {out}. Use it with: poise calibrate apply {out} --probabilities FILE --out ANSWERS")
    else:
        typer.echo()
        show(Table("", (), (), (f"Recommended: {calibration.reason}",)))
        typer.echo(f"Written: {out}. Use it with: poise classify IMAGES --calibration {out}")


def _independent(
    images: Path, names: list[str] | None, options: dict[str, Any], out: Path, confidence: float, quiet: bool
) -> None:
    """Calibrate independent labels; an image may have any number of them."""
    from poise.calibration.independent import truth_table
    from poise.inference import independent
    from poise.inference.classifier import Classifier
    from poise.methods import expand

    paths, truth, found = read_tagged(images)
    written = written_labels(found if names is None else names)
    truth_table(written["labels"], truth)  # before the model is loaded
    classifier: Classifier[Any] = Classifier(**{**options, **written, "method": list(expand(options["method"]))})
    calibration = independent.calibrate(
        classifier, paths, truth, confidence=confidence, watched=partial(watched, quiet=quiet)
    )
    calibration.save(out)
    counts = calibration.truth.sum(0)
    lines = tuple(
        Line.of(label, str(counts[at]), f"{calibration.fit.a[at]:.3g}", f"{calibration.fit.b[at]:.3g}")
        for at, label in enumerate(calibration.conditions.labels)
    )
    note = "The probability of a label is sigmoid(a z + b), z its logit. Labels with few images are like the others."
    show(Table(f"Labels of {len(calibration)} images", ("Label", "Images", "a", "b"), lines, (note,), texts=1))
    use = f"poise classify IMAGES --calibration {out}"
    for name in ("precision", "recall"):
        numbers = {level: _certified(calibration, name, level) for level in _LEVELS}
        shares = (f"{100 * level:g} %: {number}" for level, number in numbers.items())
        typer.echo(f"Labels of {len(lines)} with a certified threshold, by {name}: {', '.join(shares)}")
        held = [level for level, number in numbers.items() if number]
        if held and "--precision" not in use:
            use += f" --{name} {max(held):g}"
    typer.echo(f"Written: {out}. Use it with: {use}")


def _certified(calibration: IndependentCalibration, name: str, level: float) -> int:
    """Return how many labels have a certified threshold."""
    try:
        found = calibration.thresholds(**{name: level})
    except InvalidCalibrationError:
        return 0
    return int(np.isfinite(found.yes if name == "precision" else found.no).sum())


def _check_alone(images: Path | None, numbers: set[str], options: list[str]) -> None:
    """Raise an error unless the numbers are complete, and nothing is given that would have no effect."""
    check_numbers(numbers, "--truth")
    unused = [*(["images"] if images else []), *(f"--{name.replace('_', '-')}" for name in options)]
    if unused:
        raise InvalidOptionError(
            f"{', '.join(unused)} would have no effect on numbers that are given.", hint="Leave it out."
        )


def _typed(ctx: typer.Context, name: str) -> bool:
    """Whether an option is on the command line; the environment may have one for other commands."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _of_numbers(numbers: Mapping[str, Any], names: list[str] | None, limits: Any) -> Calibration:
    """Calibrate probabilities, logits or features in files."""
    from poise.calibration import calibrate_probabilities

    probs, columns = given_probabilities(numbers)
    written = written_labels(names or columns or [str(at) for at in range(probs.shape[-1] if probs.ndim else 0)])
    if written.pop("groups"):
        raise InvalidOptionError("Labels are in groups.", hint="Calibrate the probabilities of each group.")
    truth = read_truth(numbers["--truth"], written["labels"])
    return calibrate_probabilities(probs, truth, **written, **limits)


def _of_images(images: Path, names: list[str] | None, options: dict[str, Any], quiet: bool, limits: Any) -> Calibration:
    """Calibrate a classifier; all that does not depend on the model is checked before it is loaded."""
    paths, truth, found = read_labelled(images)
    written = written_labels(found if names is None else names)
    known = written["labels"]
    from poise.calibration.feasible import check_number
    from poise.inference import calibrating
    from poise.inference.option_checks import check_structure
    from poise.methods import expand
    from poise.prompts import check_labels

    check_structure(written["groups"], (), "a calibration")
    methods = list(expand(options["method"]))
    check_truth(images, truth, check_labels(known, fewest=2))
    check_number(len(paths), methods=len(methods), **limits)
    drawn = read_drawn(images)
    classifier = _classifier({**options, **written, "method": methods}, paths, quiet)
    if cost := cost_note(classifier, len(paths)):
        remark(cost, quiet=quiet)
    return calibrating.calibrate(classifier, paths, truth, drawn=drawn, watched=partial(watched, quiet=quiet), **limits)


def _classifier(options: dict[str, Any], paths: list[Path], quiet: bool) -> Classifier:
    """Return the classifier; the number of views is chosen on the images if it is "auto"."""
    from poise.inference.auto_views import FULL, choose_views
    from poise.inference.classifier import Classifier
    from poise.inference.option_checks import AUTO
    from poise.inference.variants import with_views

    if options["views"] != AUTO:
        return Classifier(**options)
    classifier = Classifier(**{**options, "views": FULL})
    choice = choose_views(classifier, paths)
    remark(f"--views auto: {choice.reason}", quiet=quiet)
    return with_views(classifier, choice.views)


def _show(calibration: Calibration, errors: list[float], coverages: list[float]) -> None:
    """Print the tables, and which of the wanted thresholds can't be certified."""
    show(*tables(calibration, errors or list(_ERRORS), coverages))
    lost = [
        f"{100 * error:g} % ({name})"
        for name, part in calibration.methods.items()
        for error in errors
        if part.certificate(error).threshold is None
    ]
    if lost:
        remark(
            f"no threshold can be certified for {', '.join(lost)}: too many confident answers are wrong, or there "
            "are too few images."
        )
    typer.echo()
    show(Table("", (), (), (in_short(calibration, errors or list(_ERRORS)),)))


def _levels(option: str, text: str) -> list[float]:
    try:
        levels = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        levels = [0.0]
    if not all(0 < level < 1 for level in levels):
        raise InvalidOptionError(f"{option} is '{text}'.", hint="Give numbers between 0 and 1, such as 0.9,0.95.")
    return levels
