"""`poise classify`: classify images and print one row per image and method."""

from __future__ import annotations

from collections.abc import Container, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.input.job_options import (
    ALL_SOURCES,
    DryRun,
    MetricsPort,
    Price,
    engine_of,
    is_folder,
    on_driver,
    stored_features,
    with_stored,
)
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
from poise.cli.output.job_output import HowToRun, run_job
from poise.cli.output.row_file import Format, check_file, format_of
from poise.cli.output.skipped_files import say_skipped
from poise.cli.output.still_valid import StillValid
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidOptionError
from poise.files import only_writer
from poise.parts import ANSWERS
from poise.progress import watched

if TYPE_CHECKING:
    from poise.data.sources import Shard
    from poise.data.stored_features import Made
    from poise.jobs.answer_table import Shown


@takes_options(
    "classify",
    views=VIEWS_OR_AUTO,
    method={"help": "Comma-separated methods or groups, such as all (see `poise list methods`)."},
)
def classify(
    *,
    ctx: typer.Context,
    images: Annotated[list[str], typer.Argument(help=ALL_SOURCES)],
    labels: Labels = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    threads: Threads = None,
    output: Annotated[
        Format | None,
        typer.Option("--format", help="Output format.", show_default="by the suffix of --out, else table"),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Write the rows to this new file; FOLDER/ (with a slash, or remote): as Parquet parts, one per shard.",
            show_default="stdout",
        ),
    ] = None,
    sort_into: Annotated[
        Path | None,
        typer.Option(help="Copy each image into a folder with its label's name; into 'unsure' if it is not answered."),
    ] = None,
    links: Annotated[bool, typer.Option(help="With --sort-into: make symbolic links instead of copies.")] = False,
    resume: Annotated[
        bool,
        typer.Option(help="With jsonl or FOLDER/: skip what --out has already; other settings are refused."),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out if it exists.")] = False,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Probabilities per row; not in a table.", show_default="all, and 5 in Parquet"),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(min=0, max=1, help="Abstain below this confidence; a choice without a guarantee.")
    ] = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    details: Annotated[bool, typer.Option(help="With --format json or jsonl: add intermediate results.")] = False,
    dry_run: DryRun = False,
    price: Price = None,
    metrics_port: MetricsPort = None,
    engine: Engine = EngineName.local,
    address: Address = "",
    actors: Actors = 0,
) -> None:
    """Classify images and print a label and its confidence for each."""
    parts, output = is_folder(out), format_of(out, output)
    _check_together(ctx.params, parts=parts)
    file = None if out is None or parts else Path(out)
    if file is not None:
        check_file(file, output, ctx.params)
    names = None
    known = options["calibration"] is not None or options["model"].startswith("onnx:")  # whether a file has labels
    if not known or labels is not None or labels_file is not None:
        names = labels_from(labels, labels_file)
    from poise import methods
    from poise.data.opening import open_images
    from poise.data.sources import are_files, read_all
    from poise.jobs.answer_table import Shown
    from poise.loading.sources import name_of

    shards = open_images(images)
    say_skipped(images, quiet=quiet)
    features = stored_features(shards)
    options = with_stored(ctx, options, features)
    options = stored_options(ctx, {**options, "method": methods.expand(options["method"])}, names)
    if options["independent"] and threshold is not None:
        raise InvalidOptionError(
            "--threshold is for labels of which one applies.", hint="Give --precision or --recall, with a calibration."
        )
    options["views"] = _chosen_views(options, shards, quiet)
    chosen = list(options["method"])
    sorting = None
    if sort_into is not None:
        sorted_images.check_sorting(chosen, files=are_files(shards))
        sorting = sorted_images.SortedImages(sort_into, _answers(options), links=links)
    if parts:
        how = HowToRun(
            engine_of(engine, address, actors, options["device"]), resume, dry_run, price, metrics_port, quiet, verbose
        )
        made = None if features is None else features.made
        _write_parts(shards, options, str(out), Shown(top_k or Shown.top_k, threshold), how, made)
        return
    from poise.inference.classifier import Classifier

    classifier: Classifier[Any] = Classifier(**options)
    columns = result_rows.Columns(chosen, tuple(options["labels"]), top_k, threshold)
    with ExitStack() as held:
        if file is not None and output is Format.jsonl:
            held.enter_context(only_writer(file))
            rows = row_settings.settings(options, classifier, top_k=top_k, threshold=threshold, details=details)
            row_settings.begin(file, rows, resume=resume)
        finished = sink.finished(file, chosen) if resume else frozenset()
        total = _count(shards, finished)
        if note := cost_note(classifier, total):
            remark(note, quiet=quiet)
        items = (item for item in read_all(shards) if name_of(item) not in finished)
        outcomes = watched(classifier.each(items, details=details), total, quiet=quiet)
        if options["calibration"] is not None and not options["independent"]:
            valid = StillValid(options["calibration"], chosen[0])
            held.callback(valid.say, verbose=verbose)  # last, also where images failed
            outcomes = valid.passed_on(outcomes)
        rows_go_to = sink.Sink(output.value, columns, file, append=resume, sorting=sorting)
        sink.write_rows(outcomes, total, rows_go_to, quiet=quiet, resumable=True)


def _check_together(options: dict[str, Any], *, parts: bool) -> None:
    """Refuse options that don't fit together."""
    if not parts:
        _check_rows(options)
    elif options["sort_into"] is not None or options["details"]:
        raise InvalidOptionError(
            "--sort-into and --details don't go with --out FOLDER/.", hint="Use --format jsonl, or leave them out."
        )
    if options["overwrite"] and (parts or options["out"] is None or options["resume"]):
        raise InvalidOptionError(
            "--overwrite replaces one file.", hint="Give it with --out FILE, without --resume; delete a FOLDER/ first."
        )
    if options["threshold"] is not None and options["max_error"] is not None:
        raise InvalidOptionError("--threshold and --max-error both decide what is answered.", hint="Give one of them.")
    if options["links"] and options["sort_into"] is None:
        raise InvalidOptionError("--links goes with --sort-into.", hint="Add it, or leave --links out.")
    if options["engine"] != EngineName.ray and (options["address"] or options["actors"]):
        raise InvalidOptionError("--address and --actors require --engine ray.", hint="Add it, or leave them out.")


def _check_rows(options: dict[str, Any]) -> None:
    """Refuse options of jobs where rows go to one file, or to stdout."""
    if options["resume"] and (options["out"] is None or format_of(options["out"], options["output"]) != Format.jsonl):
        raise InvalidOptionError(
            "--resume continues a file of JSON lines, or a folder of parts.",
            hint="Add --format jsonl --out FILE, or --out FOLDER/.",
        )
    for name in ("dry_run", "price", "metrics_port"):
        if options[name]:
            raise InvalidOptionError(
                f"--{name.replace('_', '-')} goes with --out FOLDER/.", hint="Add it, or leave it out."
            )
    if options["engine"] == EngineName.ray:
        raise InvalidOptionError(
            "The workers of --engine ray write a folder of parts.",
            hint="Add --out FOLDER/, on storage that all of them reach; `poise collect` makes one file of it.",
        )


def _write_parts(
    shards: Sequence[Shard], options: dict[str, Any], out: str, shown: Shown, how: HowToRun, made: Made | None
) -> None:
    """Classify shards into a folder of parts; ``made`` says how stored features were made."""
    from dataclasses import asdict

    from poise.inference.classifier import Classifier
    from poise.jobs.workers import AnswerJob, AnswerWorker
    from poise.loading.stored import check_made

    job = AnswerJob(out, options, shown)
    placed = on_driver(options["dtype"]) if how.engine.name == "ray" else {}
    classifier: Classifier[Any] = Classifier(**{**options, **placed})
    if made is not None:
        check_made(made, classifier.encoder, classifier.read_recipe())
    manifest = {"format": ANSWERS, "settings": row_settings.settings(options, classifier, **asdict(shown))}
    worker = partial(AnswerWorker, job, classifier)
    run_job(job, shards, manifest, how, worker=worker, calibration=options["calibration"])


def _count(shards: Sequence[Shard], finished: Container[str]) -> int:
    """Return the number of images that are left, as far as it is known before they are read."""
    from poise.data.sources import are_files, count_images

    if finished and are_files(shards):
        return sum(item.id not in finished for shard in shards for item in shard.items())
    return count_images(shards)


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


def _answers(options: dict[str, Any]) -> tuple[str, ...]:
    """Return all that an image may be answered with: the labels and, with a tree, its nodes."""
    from poise.calibration import Tree

    if options["groups"] or options["independent"]:
        raise InvalidOptionError("--sort-into needs one answer per image.", hint="Sort by one group of labels.")

    return Tree(options["labels"], options["parents"]).names if options["parents"] else options["labels"]
