"""`poise evaluate`: what a calibrated classifier keeps of its promises, on labelled images that it has not seen."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise import __version__
from poise.cli.commands.listing import show
from poise.cli.exit_codes import SOME_FAILED
from poise.cli.input.labelled_images import check_truth, read_labelled
from poise.cli.input.option_parameters import Chosen, takes_options
from poise.cli.input.shared_options import Threads, given
from poise.cli.input.tagged_images import read_tagged
from poise.cli.output.skipped_files import say_skipped_labelled
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.errors import InvalidOptionError
from poise.files import write_atomic
from poise.progress import watched
from poise.report.tables.table import Line, Table
from poise.text import counted, safe_cell

if TYPE_CHECKING:
    from poise.calibration import Calibration, Evaluation, IndependentCalibration
    from poise.calibration.label_evaluation import LabelEvaluation

_STYLE = "body{font:16px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em}table{border-collapse:collapse}"
_STYLE += "td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"
_STYLE += "figure{display:inline-block;vertical-align:top;max-width:20em;margin:1em 1em 1em 0}"
_STYLE += "figure.wide{max-width:none}"
_STYLE += "@media(prefers-color-scheme:dark){body{background:#12151a;color:#e8ebef}}"
_SUFFIXES = (".html", ".json", ".csv")
_SHOWN = 10  # rows of each list of mistakes on a terminal
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
        Path | None,
        typer.Option(
            help="Also write a page with figures (.html), all numbers and mistakes (.json), or every answer (.csv)."
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Measure accuracy, errors among the answered, coverage and set sizes on images that were not calibrated on."""
    if out is not None and out.suffix not in _SUFFIXES:
        raise InvalidOptionError(f"--out is '{out}'.", hint=f"Give a name that ends in {', '.join(_SUFFIXES)}.")
    from poise.images import find_images
    from poise.inference import evaluating, independent
    from poise.inference.classifier import Classifier
    from poise.inference.guarantees import read, trusted_options
    from poise.methods import expand

    stored = read(calibration)
    if out is not None and out.suffix == ".csv" and stored.conditions.independent:
        raise InvalidOptionError("A .csv has one answer per image.", hint="Of independent labels, write a .json.")
    kind: Any = independent if stored.conditions.independent else evaluating
    paths, truth = _read(images, stored)
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
    elif not stored.conditions.independent:
        _show_mistakes(found)
    for failure in found.failures:
        remark(f"left out: {failure.source}: {failure.message}")
    if out is not None:
        about = _about(stored, calibration, images)
        write_atomic(out, _RENDER[out.suffix](found, about).encode("utf-8", "backslashreplace"))
        remark(f"written to {out}.", quiet=quiet)
    if found.failures:
        raise typer.Exit(SOME_FAILED)


def _read(images: Path, stored: Calibration | IndependentCalibration) -> tuple[list[Any], list[Any]]:
    """Return the images and what is correct for each."""
    if stored.conditions.independent:
        return read_tagged(images)[:2]
    paths, truth, _ = read_labelled(images)
    check_truth(images, truth, stored.conditions.labels)
    return paths, truth


def _table(found: Evaluation | LabelEvaluation) -> Table:
    lines = tuple(Line.of(title, *texts) for title, texts in found.rows())
    title = f"{counted(len(found), 'image')} that were not calibrated on"
    return Table(title, ("", *found.methods), lines, tuple(found.notes()), texts=1 + len(found.methods))


def _show_mistakes(found: Evaluation) -> None:
    """Print what the first method gets wrong."""
    method, *others = found.methods
    for each in found.listings(method, _SHOWN):
        typer.echo()
        title = f"{method}: {each.title}" if others else each.title
        numbers = {at for at, heading in enumerate(each.headings) if heading in ("Images", "Confidence")}
        texts = frozenset(range(len(each.headings))) - numbers
        show(Table(title, each.headings, tuple(Line.of(*row) for row in each.rows), texts=1, more_texts=texts))


def _about(stored: Calibration | IndependentCalibration, calibration: Path, images: Path) -> dict[str, str]:
    """Return what an evaluation was made of, for its report."""
    labels = stored.conditions.labels
    return {
        "calibration": str(calibration),
        "images": str(images),
        "labels": f"{len(labels)}: {', '.join(labels)}",
        "model": stored.conditions.model,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "poise": __version__,
    }


def _as_json(found: Evaluation | LabelEvaluation, about: dict[str, str]) -> str:
    return json.dumps({"about": about, **found.to_dict()}, indent=1, ensure_ascii=False) + "\n"


def _as_csv(found: Evaluation, about: dict[str, str]) -> str:
    """Return one line per method and image."""
    rows, buffer = found.answers(), io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: safe_cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _page(found: Evaluation | LabelEvaluation, about: dict[str, str]) -> str:
    facts = "".join(f"<li>{escape(name)}: {escape(value)}</li>" for name, value in about.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>poise evaluate</title><style>{_STYLE}</style></head><body>'
        f"<h1>Evaluation</h1><ul>{facts}</ul>{found._repr_html_()}</body></html>\n"
    )


_RENDER: dict[str, Any] = {".html": _page, ".json": _as_json, ".csv": _as_csv}
