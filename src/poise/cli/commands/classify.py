"""`poise classify`: classify images and print one row per image and method."""

from __future__ import annotations

from collections.abc import Container, Sequence
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
from poise.results import Failure

if TYPE_CHECKING:
    from poise.data.sources import Shard
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
        list[str],
        typer.Argument(
            help="Image files, folders or glob patterns; wds:SHARDS.tar, parquet:TABLES, list:FILE or hf:NAME; "
            "'samples' for five example images."
        ),
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
    from poise import methods
    from poise.data.opening import open_images
    from poise.data.sources import are_files, read_shard
    from poise.loading.sources import name_of

    shards = open_images(images)

    options = stored_options(ctx, {**options, "method": methods.expand(options["method"])}, names)
    options["views"] = _chosen_views(options, shards, quiet)
    chosen = list(options["method"])
    sorting = None
    if sort_into is not None:
        sorted_images.check_sorting(chosen, files=are_files(shards))
        sorting = sorted_images.SortedImages(sort_into, _answers(options), links=links)
    classifier = _classifier(options, engine, address, actors)
    columns = result_rows.Columns(chosen, tuple(options["labels"]), top_k, threshold)
    with ExitStack() as held:
        if out is not None and output is Format.jsonl:
            held.enter_context(only_writer(out))
            rows = row_settings.settings(options, classifier, top_k=top_k, threshold=threshold, details=details)
            row_settings.begin(out, rows, resume=resume)
        finished = sink.finished(out, chosen) if resume else frozenset()
        total = _count(shards, finished)
        if engine is EngineName.local and (note := cost_note(classifier, total)):
            remark(note, quiet=quiet)
        items: Any = (item for shard in shards for item in read_shard(shard) if name_of(item) not in finished)
        if engine is EngineName.ray:
            items = [Path(item.source) if isinstance(item, Failure) else Path(str(item.read)) for item in items]
        outcomes = watched(classifier.each(items, details=details), total, quiet=quiet)
        if options["calibration"] is not None:
            valid = StillValid(options["calibration"], chosen[0])
            held.callback(valid.say, verbose=verbose)  # last, also where images failed
            outcomes = valid.passed_on(outcomes)
        rows_go_to = sink.Sink(output.value, columns, out, append=resume, sorting=sorting)
        sink.write_rows(outcomes, total, rows_go_to, quiet=quiet)


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


def _count(shards: Sequence[Shard], finished: Container[str]) -> int:
    """Return the number of images that are left, as far as it is known before they are read."""
    from poise.data.sources import are_files

    if finished and are_files(shards):
        return sum(item.id not in finished for shard in shards for item in shard.items())
    return int(sum(shard.images() or 0 for shard in shards))


def _chosen_views(options: dict[str, Any], shards: Sequence[Shard], quiet: bool) -> int:
    """Return the number of views; "auto" without a calibration is decided on the images themselves."""
    views = options["views"]
    if views == "auto" and options.get("calibration") is not None:
        return int(options["calibration"].conditions.views)
    if views != "auto":
        return int(views)
    from poise.data.sources import sample
    from poise.inference.auto_views import FULL, MOST, choose_views
    from poise.inference.classifier import Classifier

    choice = choose_views(Classifier(**{**options, "views": FULL}), sample(shards, MOST))
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


def _answers(options: dict[str, Any]) -> tuple[str, ...]:
    """Return all that an image may be answered with: the labels and, with a tree, its nodes."""
    from poise.calibration import Tree

    if options["groups"]:
        raise InvalidOptionError("--sort-into needs one answer per image.", hint="Sort by one group of labels.")

    return Tree(options["labels"], options["parents"]).names if options["parents"] else options["labels"]
