"""`poise evaluate`: what a calibrated classifier keeps of its promises, on labelled images that it has not seen."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.commands.listing import show
from poise.cli.input.labelled_images import read_labelled
from poise.cli.input.option_parameters import Chosen, takes_options
from poise.cli.input.shared_options import Threads, given
from poise.cli.input.tagged_images import read_tagged
from poise.cli.output.skipped_files import say_skipped_labelled
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidOptionError
from poise.files import write_atomic
from poise.progress import watched
from poise.report.tables.table import Line, Table
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration import Evaluation
    from poise.calibration.label_evaluation import LabelEvaluation

_STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}"
_STYLE += "td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"
_STYLE += "figure{display:inline-block;vertical-align:top;max-width:20em;margin:1em 1em 1em 0}"
_STYLE += "figure.wide{max-width:none}"
_STYLE += "@media(prefers-color-scheme:dark){body{background:#12151a;color:#e8ebef}}"
_COLUMNS = ("Label", "Images", "Precision of the yes", "Applies, and gets no 'no'")


@takes_options(
    "evaluate",
    method={
        "default": None,
        "help": "Comma-separated methods of the calibration.",
        "show_default": "the recommended one",
    },
    model={"default": None, "show_default": "that of the calibration, unless downloaded"},
    coverage={"help": "Check prediction sets with this coverage."},
    max_error={"help": "Check the decision to abstain, for at most this share of wrong answers."},
    precision={"help": "Of independent labels: check the yes."},
    recall={"help": "Of independent labels: check the no."},
)
def evaluate(
    *,
    ctx: typer.Context,
    images: Annotated[
        Path, typer.Argument(help="Folder with one subfolder per label, or CSV file with the columns path and label.")
    ],
    calibration: Annotated[Path, typer.Option(help="File of `poise calibrate`, made with other images.")],
    options: Chosen,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Check a confidence of your own below which to abstain; in place of --max-error."
        ),
    ] = None,
    unlabelled: Annotated[
        list[str] | None, typer.Option(help="Unlabelled images of the same source sharpen the accuracy; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Also write a page with figures (.html), or all numbers (.json).")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure accuracy, errors among the answered, coverage and set sizes on images that were not calibrated on."""
    if out is not None and out.suffix not in (".html", ".json"):
        raise InvalidOptionError(f"--out is '{out}'.", hint="Give a name that ends in .html or .json.")
    from poise.images import find_images
    from poise.inference import evaluating, independent
    from poise.inference.classifier import Classifier
    from poise.inference.guarantees import read, trusted_options
    from poise.methods import expand

    stored = read(calibration)
    kind: Any = independent if stored.conditions.independent else evaluating
    paths, truth, _ = (read_tagged if stored.conditions.independent else read_labelled)(images)
    say_skipped_labelled(images, quiet=quiet)
    typed = given(ctx, options)
    if "method" in typed:
        typed["method"] = list(expand(typed["method"]))
    classifier: Classifier[Any] = Classifier(**{**trusted_options(stored, typed), **typed, "calibration": stored})
    added: dict[str, Any] = {"unlabelled": find_images(unlabelled)} if unlabelled else {}
    added |= {} if threshold is None else {"threshold": threshold}
    if added and stored.conditions.independent:
        raise InvalidOptionError(f"--{next(iter(added))} is for labels of which one is correct.", hint="Leave it out.")
    found = kind.evaluate(classifier, paths, truth, **added, watched=partial(watched, quiet=quiet))
    show(_table(found))
    if stored.conditions.independent and (lines := found.label_rows()):
        typer.echo()
        show(Table("Each label", _COLUMNS, tuple(Line.of(*line) for line in lines), texts=1))
    if out is not None:
        text = json.dumps(found.to_dict(), indent=1) if out.suffix == ".json" else _page(found)
        write_atomic(out, f"{text}\n".encode())
        remark(f"written to {out}.", quiet=quiet)


def _table(found: Evaluation | LabelEvaluation) -> Table:
    lines = tuple(Line.of(title, *texts) for title, texts in found.rows())
    title = f"{counted(len(found), 'image')} that were not calibrated on"
    return Table(title, ("", *found.methods), lines, tuple(found.notes()), texts=1 + len(found.methods))


def _page(found: Evaluation | LabelEvaluation) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>poise evaluate</title><style>{_STYLE}</style></head><body>'
        f"<h1>Evaluation</h1>{found._repr_html_()}</body></html>"
    )
