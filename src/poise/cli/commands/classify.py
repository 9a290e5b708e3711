"""`poise classify`: classify images and print one row per image and method."""

from __future__ import annotations

from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.input.option_parameters import VIEWS_OR_AUTO, Chosen, takes_options
from poise.cli.input.shared_options import (
    Actors,
    Address,
    Engine,
    EngineName,
    Labels,
    LabelsFile,
    Threads,
    labels_from,
    stored_options,
)
from poise.cli.output import result_rows, row_settings, sink, sorted_images
from poise.cli.output.cost_note import cost_note
from poise.cli.output.still_valid import StillValid
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidOptionError
from poise.files import only_writer
from poise.progress import watched

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier
    from poise.inference.ray_classifier import ClusterClassifier


Format = StrEnum("Format", ["table", "json", "jsonl", "csv"])


@takes_options(
    "classify",
    views=VIEWS_OR_AUTO,
    method={"help": "Comma-separated methods or groups, such as all (see `poise list methods`)."},
)
def classify(
    *,
    ctx: typer.Context,
    images: Annotated[
        list[str], typer.Argument(help="Image files, folders or glob patterns; 'samples' for five example images.")
    ],
    labels: Labels = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    threads: Threads = None,
    output: Annotated[Format, typer.Option("--format", help="Output format.")] = Format.table,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this file.", show_default="stdout")] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(help="Copy each image into a folder with its label's name; into 'unsure' if it is not answered."),
    ] = None,
    links: Annotated[bool, typer.Option(help="With --sort-into: make symbolic links instead of copies.")] = False,
    resume: Annotated[
        bool, typer.Option(help="With --format jsonl: skip images that --out has rows for; other settings are refused.")
    ] = False,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Probabilities per row in json, jsonl and csv.", show_default="all")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Abstain below this confidence; a choice without a guarantee.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    details: Annotated[bool, typer.Option(help="With --format json or jsonl: add intermediate results.")] = False,
    engine: Engine = EngineName.local,
    address: Address = "",
    actors: Actors = 0,
) -> None:
    """Classify images and print a label and its confidence for each."""
    _check_together(ctx.params)
    names = None
    known = options["calibration"] is not None or options["model"].startswith("onnx:")  # whether a file has labels
    if not known or labels is not None or labels_file is not None:
        names = labels_from(labels, labels_file)
    paths = _paths(images)
    from poise import methods

    options = stored_options(ctx, {**options, "method": methods.expand(options["method"])}, names)
    options["views"] = _chosen_views(options, paths, quiet)
    chosen = list(options["method"])
    sorting = None
    if sort_into is not None:
        sorted_images.check_sorting(chosen)
        sorting = sorted_images.SortedImages(sort_into, options["labels"], links=links)
    classifier = _classifier(options, engine, address, actors)
    columns = result_rows.Columns(chosen, tuple(options["labels"]), top_k, threshold)
    with ExitStack() as held:
        if out is not None and output is Format.jsonl:
            held.enter_context(only_writer(out))
            rows = row_settings.settings(options, classifier, top_k=top_k, threshold=threshold, details=details)
            row_settings.begin(out, rows, resume=resume)
        finished = sink.finished(out, chosen) if resume else frozenset()
        paths = [path for path in paths if str(path) not in finished]
        if engine is EngineName.local and (note := cost_note(classifier, len(paths))):
            remark(note, quiet=quiet)
        outcomes = watched(classifier.each(paths, details=details), len(paths), quiet=quiet)
        if options["calibration"] is not None:
            valid = StillValid(options["calibration"], chosen[0])
            held.callback(valid.say, verbose=verbose)  # last, also where images failed
            outcomes = valid.passed_on(outcomes)
        rows_go_to = sink.Sink(output.value, columns, out, append=resume, sorting=sorting)
        sink.write_rows(outcomes, len(paths), rows_go_to, quiet=quiet)


def _check_together(options: dict[str, Any]) -> None:
    """Refuse options that don't fit together."""
    if options["resume"] and (options["out"] is None or options["output"] != Format.jsonl):
        raise InvalidOptionError("--resume continues a file of JSON lines.", hint="Add --format jsonl --out FILE.")
    if options["threshold"] is not None and options["max_error"] is not None:
        raise InvalidOptionError("--threshold and --max-error both decide what is answered.", hint="Give one of them.")
    if options["links"] and options["sort_into"] is None:
        raise InvalidOptionError("--links goes with --sort-into.", hint="Add it, or leave --links out.")
    if options["engine"] != EngineName.ray and (options["address"] or options["actors"]):
        raise InvalidOptionError("--address and --actors require --engine ray.", hint="Add it, or leave them out.")


def _chosen_views(options: dict[str, Any], paths: list[Path], quiet: bool) -> int:
    """Return the number of views; "auto" without a calibration is decided on the images themselves."""
    views = options["views"]
    if views == "auto" and options.get("calibration") is not None:
        return int(options["calibration"].conditions.views)
    if views != "auto":
        return int(views)
    from poise.inference.auto_views import FULL, choose_views
    from poise.inference.classifier import Classifier

    choice = choose_views(Classifier(**{**options, "views": FULL}), paths)
    remark(f"--views auto: {choice.reason}", quiet=quiet)
    return choice.views


def _classifier(
    options: dict[str, Any], engine: EngineName, address: str, actors: int
) -> Classifier | ClusterClassifier:
    if engine is EngineName.ray:
        from poise.inference.ray_classifier import ClusterClassifier

        return ClusterClassifier(options, address=address, actors=actors)
    from poise.inference.classifier import Classifier

    return Classifier(**options)


def _paths(images: list[str]) -> list[Path]:
    from poise.images import find_images
    from poise.images.samples import sample_images

    paths: list[Path] = []
    for image in images:
        paths += sample_images() if image == "samples" else find_images([image])
    return paths
