"""`poise classify`: classify images and print one row per image and method."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.exit_codes import INTERRUPTED, NOTHING_DONE, SOME_FAILED
from poise.errors import InvalidLabelsError, InvalidOptionError, PoiseError
from poise.storage import printable, safe_cell

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier
    from poise.inference.ray_classifier import ClusterClassifier
    from poise.inference.results import Result


Format = StrEnum("Format", ["table", "json", "csv"])
LongLabel = StrEnum("LongLabel", ["error", "truncate"])
EngineName = StrEnum("EngineName", ["local", "ray"])


def classify(
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
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    details: Annotated[bool, typer.Option(help="With --format json: add intermediate results.")] = False,
    engine: Annotated[EngineName, typer.Option(help="Where to run: locally or on a Ray cluster.")] = EngineName.local,
    address: Annotated[str, typer.Option(help="Ray address (auto or host:port); omit to start Ray locally.")] = "",
    actors: Annotated[int, typer.Option(help="Ray worker processes; 0 = one per GPU, or one per 4 CPUs.")] = 0,
) -> None:
    """Classify images and print a calibrated confidence for each."""
    names = _labels(labels, labels_file)
    paths = _paths(images)
    from poise import methods

    chosen = methods.expand(method)
    options = {
        "model": model, "labels": names, "method": chosen, "template": template, "init": init, "views": views,
        "augmix": augmix, "seed": seed, "device": device, "dtype": dtype, "batch_size": batch_size,
        "on_long_label": on_long_label.value,
    }  # fmt: skip
    classifier = _classifier(options, engine, address, actors)
    _print_rows(classifier.each(paths, details=details), len(paths), chosen, output)


def _print_rows(stream: Iterator[Any], total: int, methods: list[str], output: Format) -> None:
    """Print all outcomes, or those so far if the work stops early."""
    outcomes: list[Any] = []
    try:
        with _sigterm_raises():
            for outcome in _watched(stream, total):
                outcomes.append(outcome)
    except (KeyboardInterrupt, PoiseError) as stop:  # finished rows are printed
        if outcomes or isinstance(stop, KeyboardInterrupt):
            _echo(_RENDER[output](outcomes, methods))
            typer.echo(f"poise: stopped after {len(outcomes)} of {total} images.", err=True)
        if isinstance(stop, PoiseError):
            raise
        raise typer.Exit(128 + signal.SIGTERM if isinstance(stop, _Terminated) else INTERRUPTED) from None
    _echo(_RENDER[output](outcomes, methods))
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


def _labels(labels: str | None, labels_file: Path | None) -> list[str]:
    if (labels is None) == (labels_file is None):
        raise InvalidLabelsError(
            "Labels must come from one option.", hint="Give either --labels a,b,c or --labels-file FILE."
        )
    if labels_file is None:
        return [label.strip() for label in (labels or "").split(",")]
    from poise.prompts.labels import read_labels

    return read_labels(labels_file)


def _paths(images: list[str]) -> list[Path]:
    from poise.images import find_images
    from poise.images.samples import sample_images

    paths: list[Path] = []
    for image in images:
        paths += sample_images() if image == "samples" else find_images([image])
    return paths


def _watched(outcomes: Iterator[Any], total: int) -> Iterator[Any]:
    """Yield the same outcomes, with a progress bar on a terminal."""
    if not sys.stderr.isatty() or total < 2:
        yield from outcomes
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(outcomes, total=total, description="classifying", console=Console(stderr=True), transient=True)


def _as_table(outcomes: list[Any], methods: list[str]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("image", "method", "label", "confidence", "margin", "entropy", "next"):
        table.add_column(heading, justify="right" if heading in ("confidence", "margin", "entropy") else "left")
    errors = []
    for image, outcome in zip(_short_names(outcomes), outcomes, strict=True):
        if not isinstance(outcome, dict):
            table.add_row(Text(printable(image)), "error", "(below)", "", "", "", "", style="red")
            errors.append(printable(f"{image}: {outcome.message}"))
            continue
        for at, name in enumerate(methods):
            cells = [image if at == 0 else "", *_table_row(outcome[name])]
            table.add_row(*(Text(printable(cell)) for cell in cells))  # not markup: a label may contain [brackets]
    buffer = io.StringIO()
    terminal = sys.stdout.isatty()
    Console(file=buffer, force_terminal=terminal, width=None if terminal else 160).print(table)
    return "\n".join([buffer.getvalue().rstrip("\n"), *errors, ""])


def _short_names(outcomes: list[Any]) -> list[str]:
    """Return file names without their folders, where that distinguishes the images."""
    results = (next(iter(outcome.values())) if isinstance(outcome, dict) else outcome for outcome in outcomes)
    sources = [result.source for result in results]
    counts = Counter(Path(source).name for source in set(sources))
    return [Path(source).name if counts[Path(source).name] == 1 else source for source in sources]


def _table_row(result: Result) -> list[str]:
    ranked = list(result.probabilities.items())
    following = f"{ranked[1][0]} {ranked[1][1]:.3f}" if len(ranked) > 1 else "(one label only)"
    label = f"{result.label} (un-tuned: tuning was not finite)" if result.fallback else result.label
    numbers = [f"{value:.3f}" for value in (result.confidence, result.margin, result.entropy)]
    return [result.method, label, *numbers, following]


def _as_json(outcomes: list[Any], methods: list[str]) -> str:
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, dict):
            rows += [outcome[name].to_dict() for name in methods]
        else:
            rows.append({"source": outcome.source, "error": {"code": outcome.code, "message": outcome.message}})
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _as_csv(outcomes: list[Any], methods: list[str]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", "method", "label", "confidence", "margin", "entropy", "fallback", "error"])
    for outcome in outcomes:
        if not isinstance(outcome, dict):
            writer.writerow([safe_cell(outcome.source), "", "", "", "", "", "", safe_cell(outcome.message)])
            continue
        for name in methods:
            result = outcome[name]
            writer.writerow([safe_cell(result.source), name, safe_cell(result.label), repr(result.confidence),
                             repr(result.margin), repr(result.entropy), result.fallback, ""])  # fmt: skip
    return buffer.getvalue()


def _echo(text: str) -> None:
    """Print text; file names that are not UTF-8 are escaped."""
    typer.echo(text.encode("utf-8", "backslashreplace").decode("utf-8"), nl=False)


_RENDER = {Format.table: _as_table, Format.json: _as_json, Format.csv: _as_csv}
