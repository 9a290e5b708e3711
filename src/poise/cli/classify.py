"""`poise classify`: classify images and print one row per image and method."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli import result_rows
from poise.cli.exit_codes import INTERRUPTED, NOTHING_DONE, SOME_FAILED
from poise.errors import InvalidLabelsError, InvalidOptionError, PoiseError

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier
    from poise.inference.ray_classifier import ClusterClassifier


Format = StrEnum("Format", ["table", "json", "csv"])
LongLabel = StrEnum("LongLabel", ["error", "truncate"])
EngineName = StrEnum("EngineName", ["local", "ray"])


def classify(
    ctx: typer.Context,
    images: Annotated[
        list[str], typer.Argument(help="Image files, folders or glob patterns; 'samples' for five example images.")
    ],
    labels: Annotated[str | None, typer.Option(help="Comma-separated labels.")] = None,
    labels_file: Annotated[Path | None, typer.Option(help="Text file with one label per line.")] = None,
    model: Annotated[str, typer.Option(help="Model (see `poise list models`).")] = "pocket",
    method: Annotated[
        str, typer.Option(help="Comma-separated methods or groups, such as all (see `poise list methods`).")
    ] = "kld+cats",
    template: Annotated[
        str | None, typer.Option(help="Prompt with {} for the label.", show_default="a photo of a {}.")
    ] = None,
    init: Annotated[
        str, typer.Option(help="Where tuning starts: a name of `poise list inits`, or a prompt file.")
    ] = "template",
    views: Annotated[int, typer.Option(help="Views per image, including the plain view.")] = 64,
    augmix: Annotated[bool, typer.Option(help="Mix the augmented views with AugMix.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the augmented views.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or (on a CPU) float64.")] = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(help="Images computed together; changes results by rounding at most.", show_default="by device"),
    ] = None,
    on_long_label: Annotated[
        LongLabel, typer.Option(help="Reject or truncate labels that are longer than the model reads.")
    ] = LongLabel.error,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="File of `poise calibrate`. It also sets the labels, the model and the other options below, "
            "unless you give them."
        ),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="With --calibration: add prediction sets with this coverage, such as 0.9.")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(help="With --calibration: abstain so that at most this share of the answers is wrong."),
    ] = None,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Give the label 'unknown' to images whose match is below this number (heuristic; no number "
            "suits all labels and models, see docs/unknown.md).",
            show_default="never",
        ),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    details: Annotated[bool, typer.Option(help="With --format json: add intermediate results.")] = False,
    engine: Annotated[EngineName, typer.Option(help="Where to run: locally or on a Ray cluster.")] = EngineName.local,
    address: Annotated[str, typer.Option(help="Ray address (auto or host:port); omit to start Ray locally.")] = "",
    actors: Annotated[int, typer.Option(help="Ray worker processes; 0 = one per GPU, or one per 4 CPUs.")] = 0,
) -> None:
    """Classify images and print a calibrated confidence for each."""
    names = None
    if calibration is None or labels is not None or labels_file is not None:
        names = labels_from(labels, labels_file)
    paths = _paths(images)
    from poise import methods

    chosen = methods.expand(method)
    options: dict[str, Any] = {
        "model": model, "labels": names, "method": chosen, "template": template, "init": init, "views": views,
        "augmix": augmix, "seed": seed, "device": device, "dtype": dtype, "batch_size": batch_size,
        "on_long_label": on_long_label.value, "coverage": coverage, "max_error": max_error,
        "reject": reject,
    }  # fmt: skip
    if calibration is not None:
        from poise.calibration import Calibration

        stored = Calibration.load(calibration)
        given = {name for name in options if (source := ctx.get_parameter_source(name)) and source.name != "DEFAULT"}
        options |= {name: value for name, value in stored.options().items() if name not in given}
        options |= {"calibration": stored, "labels": names or list(stored.conditions.labels)}
    classifier = _classifier(options, engine, address, actors)
    _print_rows(classifier.each(paths, details=details), len(paths), list(options["method"]), output)


def _print_rows(stream: Iterator[Any], total: int, methods: list[str], output: Format) -> None:
    """Print all outcomes, or those so far if the work stops early."""
    outcomes: list[Any] = []
    try:
        with _sigterm_raises():
            for outcome in watched(stream, total):
                outcomes.append(outcome)
    except (KeyboardInterrupt, PoiseError) as stop:  # finished rows are printed
        if outcomes or isinstance(stop, KeyboardInterrupt):
            _echo(result_rows.RENDER[output.value](outcomes, methods))
            typer.echo(f"poise: stopped after {len(outcomes)} of {total} images.", err=True)
        if isinstance(stop, PoiseError):
            raise
        raise typer.Exit(128 + signal.SIGTERM if isinstance(stop, _Terminated) else INTERRUPTED) from None
    _echo(result_rows.RENDER[output.value](outcomes, methods))
    failed = sum(not isinstance(outcome, dict) for outcome in outcomes)
    if failed:
        typer.echo(f"poise: {failed} of {len(outcomes)} images have no answer; their rows say why.", err=True)
        raise typer.Exit(NOTHING_DONE if failed == len(outcomes) else SOME_FAILED)


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM stop the work as Ctrl-C does, so that finished rows are printed."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _classifier(
    options: dict[str, Any], engine: EngineName, address: str, actors: int
) -> Classifier | ClusterClassifier:
    if engine is EngineName.ray:
        from poise.inference.ray_classifier import ClusterClassifier

        return ClusterClassifier(options, address=address, actors=actors)
    if address or actors:
        raise InvalidOptionError("--address and --actors require --engine ray.", hint="Add it, or leave them out.")
    from poise.inference.classifier import Classifier

    return Classifier(**options)


def labels_from(labels: str | None, labels_file: Path | None) -> list[str]:
    """Return the labels that one of two options gives."""
    if (labels is None) == (labels_file is None):
        raise InvalidLabelsError(
            "Labels must come from one option.", hint="Give either --labels a,b,c or --labels-file FILE."
        )
    if labels_file is None:
        return [label.strip() for label in labels.split(",")] if labels and labels.strip() else []
    from poise.prompts.labels import read_labels

    return read_labels(labels_file)


def _paths(images: list[str]) -> list[Path]:
    from poise.images import find_images
    from poise.images.samples import sample_images

    paths: list[Path] = []
    for image in images:
        paths += sample_images() if image == "samples" else find_images([image])
    return paths


def watched(outcomes: Iterator[Any], total: int) -> Iterator[Any]:
    """Yield the same outcomes, with a progress bar on a terminal."""
    if not sys.stderr.isatty() or total < 2:
        yield from outcomes
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(outcomes, total=total, description="classifying", console=Console(stderr=True), transient=True)


def _echo(text: str) -> None:
    """Print text; file names that are not UTF-8 are escaped."""
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"), nl=False)
