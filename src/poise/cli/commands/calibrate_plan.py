"""`poise calibrate plan`: which of many unlabelled images to label for a calibration."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.cli.commands.listing import show
from poise.cli.input.job_options import ALL_SOURCES, stored_features, with_stored
from poise.cli.input.label_list import files_of, write_list
from poise.cli.input.option_parameters import FIXED_VIEWS, Chosen, takes_options
from poise.cli.input.shared_options import Labels, LabelsFile, Threads, given, labels_from
from poise.cli.output.skipped_files import say_skipped
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidOptionError
from poise.progress import watched
from poise.report.tables.table import Line, Table
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration import Plan


@takes_options("calibrate", views=FIXED_VIEWS, method={"help": "The method to calibrate.", "default": "zero-shot"})
def calibrate_plan(
    *,
    ctx: typer.Context,
    images: Annotated[list[str], typer.Argument(help=ALL_SOURCES)],
    out: Annotated[Path, typer.Option(help="The list to label: .csv, or .json for tasks of Label Studio.")],
    labels: Labels = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    budget: Annotated[int, typer.Option(min=1, help="How many images can be labelled.")] = 100,
    max_error: Annotated[
        float | None,
        typer.Option(help="Share of wrong answers that is to be certified.", show_default="all images at random"),
    ] = None,
    random: Annotated[
        int | None, typer.Option(min=1, help="Images of the budget drawn at random.", show_default="30 %")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the certified threshold.")] = 0.95,
    draw: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Choose the images to label: some at random, the others where the model is sure, for a certified threshold."""
    if out.suffix not in (".csv", ".json"):
        raise InvalidOptionError(f"--out is '{out}'.", hint="Give a name that ends in .csv or .json.")
    names = labels_from(labels, labels_file)
    from poise.calibration import plan_labels
    from poise.data.opening import open_images
    from poise.data.sources import count_images, read_all
    from poise.inference.classifier import Classifier
    from poise.inference.planning import confidences

    shards = open_images(images)
    say_skipped(images, quiet=quiet)
    options = with_stored(ctx, options, stored_features(shards))
    classifier: Classifier = Classifier(**{**options, "labels": names, "method": options["method"]})
    total = count_images(shards)
    kept, values = confidences(classifier, read_all(shards), total, watched=partial(watched, quiet=quiet))
    if len(kept) < total:
        remark(f"left out: {counted(total - len(kept), 'image')} without an answer, or copies.", quiet=quiet)
    limits = {"max_error": max_error, "random": random, "confidence": confidence, "seed": draw}
    plan = plan_labels(values, budget, **limits)  # type: ignore[arg-type]
    chosen = [*plan.random.tolist(), *plan.above.tolist()]
    paths = files_of(shards, [kept[at] for at in chosen], out.with_suffix(""))
    write_list(out, plan, dict(zip(chosen, paths, strict=True)), values.tolist())
    show(_table(plan, max_error))
    options_given = {
        name: value for name, value in given(ctx, ctx.params).items() if name in options or "label" in name
    }
    typer.echo(
        f"\nWritten: {out}, {counted(len(plan), 'image')}. Fill in the column label, and then:\n"
        f"{_next(options_given, out, max_error)}"
    )


def _table(plan: Plan, max_error: float | None) -> Table:
    cut = "" if plan.cutoff is None else f" and {len(plan.above)} with a confidence above {plan.cutoff:.4f}"
    title = f"To label: {counted(len(plan.random), 'image')} at random{cut}"
    lines = tuple(
        Line.of(f"if {row.model}", *(f"{100 * share:.0f} %" for share in (row.certified, row.answered, row.alone)))
        for row in plan.expected
    )
    notes = (
        ()
        if max_error is None
        else (
            f"Simulated: how often {100 * max_error:g} % can be certified, the images that are then answered, and how "
            "often as many labels drawn at random would certify it.",
            f"{100 * plan.share:.0f} % of the images lie above the cut-off. The certificate holds whether the model is "
            "like that or not; label all images of the list, and leave its columns as they are.",
        )
    )
    return Table(title, ("", "Certified", "Answered", "At random"), lines, notes, texts=1)


def _next(options: dict[str, object], out: Path, max_error: float | None) -> str:
    """Return the command that calibrates with the labelled list."""
    words = ["poise", "calibrate", str(out.with_suffix(".csv")), "--out", "calibration.json"]
    for name, value in {"method": "zero-shot", **options, "max_error": max_error}.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
