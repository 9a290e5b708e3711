"""`poise classify`: images and labels in, one row per image and method out."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.errors import InvalidLabelsError, InvalidOptionError, PoiseError

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier
    from poise.inference.ray_classifier import ClusterClassifier
    from poise.inference.results import Result


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    json = "json"
    csv = "csv"


class LongLabel(StrEnum):
    """What becomes of a label that is longer than the model reads."""

    error = "error"
    truncate = "truncate"


class EngineName(StrEnum):
    """Who computes."""

    local = "local"
    ray = "ray"


def classify(
    images: Annotated[list[str], typer.Argument(help="Image files, folders or globs; 'samples' for built-in photos.")],
    labels: Annotated[str | None, typer.Option(help="Labels, separated by commas.")] = None,
    labels_file: Annotated[Path | None, typer.Option(help="A text file with one label a line.")] = None,
    model: Annotated[str, typer.Option(help="A model name; see 'poise list models'.")] = "pocket",
    method: Annotated[str, typer.Option(help="One method or several, separated by commas; or all.")] = "kld+cats",
    template: Annotated[str | None, typer.Option(help="The prompt, with {} for the label: 'a photo of a {}.'")] = None,
    start: Annotated[Path | None, typer.Option(help="A fitted prompt to start from; see 'poise fit'.")] = None,
    views: Annotated[int, typer.Option(help="Views per image, the plain one included.")] = 64,
    augmix: Annotated[bool, typer.Option(help="Add AugMix to the augmented views.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the augmented views.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, float16, bfloat16, float64 (CPU).")] = "auto",
    batch_size: Annotated[
        int | None, typer.Option(help="Images tuned together; changes results by rounding at most.")
    ] = None,
    on_long_label: Annotated[
        LongLabel, typer.Option(help="Labels longer than the model reads: refuse or cut them.")
    ] = LongLabel.error,
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.table,
    details: Annotated[bool, typer.Option(help="With json: how each answer came about.")] = False,
    engine: Annotated[
        EngineName, typer.Option(help="Who computes: this process, or a Ray cluster.")
    ] = EngineName.local,
    address: Annotated[str, typer.Option(help="Of a Ray cluster: auto, or host:port; else a Ray of its own.")] = "",
    actors: Annotated[int, typer.Option(help="Ray processes; 0 = one per GPU, or per 4 CPUs.")] = 0,
) -> None:
    """Classify images against labels, with a confidence for each."""
    names = _labels(labels, labels_file)
    paths = _paths(images)
    from poise import methods

    chosen = methods.names() if method == "all" else [name.strip() for name in method.split(",") if name.strip()]
    options = {
        "model": model, "labels": names, "method": chosen, "template": template, "start": start, "views": views,
        "augmix": augmix, "seed": seed, "device": device, "dtype": dtype, "batch_size": batch_size,
        "on_long_label": on_long_label.value,
    }  # fmt: skip
    classifier = _classifier(options, engine, address, actors)
    _print_rows(classifier.each(paths, details=details), len(paths), chosen, output)


def _print_rows(stream: Iterator[Any], total: int, methods: list[str], output: Format) -> None:
    """Print what comes; if it stops early, what has come by then."""
    outcomes: list[Any] = []
    try:
        for outcome in _watched(stream, total):
            outcomes.append(outcome)
    except (KeyboardInterrupt, PoiseError) as stop:  # what is done is not lost
        if outcomes or isinstance(stop, KeyboardInterrupt):
            typer.echo(_RENDER[output](outcomes, methods), nl=False)
            typer.echo(f"poise: stopped after {len(outcomes)} of {total} images.", err=True)
        if isinstance(stop, PoiseError):
            raise
        raise typer.Exit(130) from None
    typer.echo(_RENDER[output](outcomes, methods), nl=False)
    failed = sum(not isinstance(outcome, dict) for outcome in outcomes)
    if failed:
        typer.echo(f"poise: {failed} of {len(outcomes)} images could not be read.", err=True)
        raise typer.Exit(4 if failed == len(outcomes) else 3)


def _classifier(
    options: dict[str, Any], engine: EngineName, address: str, actors: int
) -> Classifier | ClusterClassifier:
    if engine is EngineName.ray:
        from poise.inference.ray_classifier import ClusterClassifier

        return ClusterClassifier(options, address=address, actors=actors)
    if address or actors:
        raise InvalidOptionError(
            "--address and --actors are of a Ray cluster.", hint="Add --engine ray, or leave them out."
        )
    from poise.inference.classifier import Classifier

    return Classifier(**options)


def _labels(labels: str | None, labels_file: Path | None) -> list[str]:
    if (labels is None) == (labels_file is None):
        raise InvalidLabelsError(
            "Labels must come from one place.", hint="Give either --labels a,b,c or --labels-file FILE."
        )
    if labels is not None:
        return [label.strip() for label in labels.split(",")]
    assert labels_file is not None
    try:
        text = labels_file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidLabelsError(
            f"Can't read labels from '{labels_file}': {error}.", hint="One label a line, in UTF-8."
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _paths(images: list[str]) -> list[Path]:
    from poise.images import find_images
    from poise.images.samples import sample_images

    paths: list[Path] = []
    for image in images:
        paths += sample_images() if image == "samples" else find_images([image])
    return paths


def _watched(outcomes: Iterator[Any], total: int) -> Iterator[Any]:
    """The same outcomes, with a progress bar where a person is watching."""
    if not sys.stderr.isatty() or total < 2:
        yield from outcomes
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(outcomes, total=total, description="classifying", console=Console(stderr=True), transient=True)


def _as_table(outcomes: list[Any], methods: list[str]) -> str:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("image", "method", "label"):
        table.add_column(heading)
    for heading in ("confidence", "margin", "entropy"):
        table.add_column(heading, justify="right")
    table.add_column("next")
    errors = []
    for image, outcome in zip(_short_names(outcomes), outcomes, strict=True):
        if not isinstance(outcome, dict):
            table.add_row(image, "error", "(below)", "", "", "", "", style="red")
            errors.append(f"{image}: {outcome.message}")
            continue
        for place, name in enumerate(methods):
            table.add_row(image if place == 0 else "", *_table_row(outcome[name]))
    buffer = io.StringIO()
    terminal = sys.stdout.isatty()
    Console(file=buffer, force_terminal=terminal, width=None if terminal else 160).print(table)
    return "\n".join([buffer.getvalue().rstrip("\n"), *errors, ""])


def _short_names(outcomes: list[Any]) -> list[str]:
    """File names without their folders, where that tells the images apart."""
    sources = [(next(iter(each.values())) if isinstance(each, dict) else each).source for each in outcomes]
    owners = Counter(Path(source).name for source in set(sources))
    return [Path(source).name if owners[Path(source).name] == 1 else source for source in sources]


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
            writer.writerow([_plain(outcome.source), "", "", "", "", "", "", _plain(outcome.message)])
            continue
        for name in methods:
            result = outcome[name]
            writer.writerow([_plain(result.source), name, _plain(result.label), repr(result.confidence),
                             repr(result.margin), repr(result.entropy), result.fallback, ""])  # fmt: skip
    return buffer.getvalue()


def _plain(cell: str) -> str:
    """Text that a spreadsheet won't take for a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell


_RENDER = {Format.table: _as_table, Format.json: _as_json, Format.csv: _as_csv}
