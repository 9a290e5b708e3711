"""`poise monitor`: whether images that were classified later are still like those of a calibration."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from poise.cli.exit_codes import ALARM
from poise.cli.input.labelled_images import read_labelled
from poise.cli.input.number_files import read_truth
from poise.cli.input.option_parameters import Chosen, takes_options
from poise.cli.output import row_settings
from poise.cli.output.verbose import Quiet, remark
from poise.errors import InvalidOptionError, PoiseError, reason_of
from poise.files import read_bounded, write_atomic
from poise.filesystems import is_remote
from poise.metrics.sample import checked_labels
from poise.parts import ANSWERS, read_manifest
from poise.progress import watched
from poise.text import as_words, printable

if TYPE_CHECKING:
    from poise.calibration import Calibration, Conditions, TruthMonitor

_MAX_BYTES = 512 << 20  # of the answers


@takes_options("monitor", model={"default": None, "show_default": "that of the calibration, unless downloaded"})
def monitor(
    *,
    calibration: Annotated[Path, typer.Argument(help="File of `poise calibrate`.")],
    answers: Annotated[
        str,
        typer.Argument(
            help="JSON lines of `poise classify --calibration ... --format jsonl` or `poise calibrate apply`, a folder "
            "of parts, or images as `poise classify` takes them."
        ),
    ],
    alpha: Annotated[float, typer.Option(help="Probability of a false alarm over the whole file.")] = 0.01,
    method: Annotated[
        str | None, typer.Option(help="Whose answers to look at.", show_default="the recommended one")
    ] = None,
    shuffle: Annotated[
        bool,
        typer.Option(
            help="Take the images in random order, as `poise classify` does: files are found in the order of their "
            "names. --no-shuffle takes them in their own, for images in order of time."
        ),
    ] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of the random order, and of ties.")] = 0,
    figure: Annotated[Path | None, typer.Option(help="Also write the evidence after each image (.svg).")] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            help="Labels that came later: test answers instead. Folder of labels, or CSV with path and label; of "
            "numbers: as of `poise calibrate --truth`."
        ),
    ] = None,
    coverage: Annotated[float | None, typer.Option(help="With --truth: also test prediction sets.")] = None,
    max_error: Annotated[float | None, typer.Option(help="With --truth: also test this certified error.")] = None,
    options: Chosen,
    quiet: Quiet = False,
) -> None:
    """Test, without labels, whether images still are like the calibration images; exit code 6 if they are not."""
    if figure is not None and figure.suffix != ".svg":
        raise InvalidOptionError(f"--figure is '{figure}'.", hint="Give a name that ends in .svg.")
    from poise.calibration import Calibration
    from poise.calibration.plots import evidence_svg

    stored = Calibration.load(calibration)
    watch = stored.monitor(alpha, method=method, seed=seed)
    name = method or stored.recommended
    if _are_images(answers):
        named = {key: value for key, value in {**options, "coverage": coverage}.items() if value is not None}
        rows = _classified(stored, answers, name, named, quiet)
    else:
        _check_conditions(answers, stored.conditions)
        rows = _read(answers, name, matched=stored.methods[name].match is not None)
    if shuffle:
        random.Random(seed).shuffle(rows)
    if truth is not None:
        if figure is not None:
            raise InvalidOptionError("--figure shows the test without labels.", hint="Leave --figure or --truth out.")
        limits: dict[str, float | None] = {"coverage": coverage, "max_error": max_error}
        known = _truth(truth, stored, len(rows))
        _test_answers(
            stored.truth_monitor(alpha, method=method, seed=seed, **limits), rows, known, _order(shuffle, seed)
        )
        return
    if coverage is not None or max_error is not None:
        raise InvalidOptionError("--coverage and --max-error need labels.", hint="Add --truth, or leave them out.")
    for row in rows:
        watch.update(row.confidence, row.match)
    typer.echo(str(watch))
    typer.echo(_order(shuffle, seed))
    if watch.rang is not None and not shuffle:
        typer.echo(f"Image {watch.rang}: {printable(rows[watch.rang - 1].source)}")
    if figure is not None:
        write_atomic(figure, f"{evidence_svg(watch.trail, alpha)}\n".encode())
        remark(f"written to {figure}.", quiet=quiet)
    if watch.alarm:
        raise typer.Exit(ALARM)


def _order(shuffle: bool, seed: int) -> str:
    if shuffle:
        return f"The images were taken in random order (seed {seed}); if theirs is that of time, use --no-shuffle."
    return "The images were taken in the order of the file or folder, as if that were the order of time."


def _truth(truth: Path, calibration: Calibration, answers: int) -> dict[str, str]:
    """Return the correct labels, by the source of an answer."""
    if calibration.conditions.given:  # rows of numbers have no paths: labels are in the order of the rows
        names = calibration.conditions.labels
        classes = checked_labels(read_truth(truth, names), answers, len(names))
        return {_place(f"row {at}"): as_words(names[label]) for at, label in enumerate(classes)}
    paths, labels, _ = read_labelled(truth)
    sources = (str(getattr(path, "id", path)) for path in paths)  # stored features have the ids of their images
    return {_place(source): as_words(label) for source, label in zip(sources, labels, strict=True)}


def _place(source: str) -> str:
    return str(Path(source).resolve())


def _test_answers(watch: TruthMonitor, rows: list[_Row], known: dict[str, str], order: str) -> None:
    """Show the images that have a label to the test, in the order of the rows, and print what it found."""
    for row in rows:
        if (label := known.get(_place(row.source))) is not None:
            covered = None if row.members is None else label in map(as_words, row.members)
            watch.update(row.confidence, as_words(row.label) == label, covered)
    if not watch.images:
        raise InvalidOptionError(
            "None of the images has a label in --truth.", hint="Paths are compared; give those of the same images."
        )
    typer.echo(f"{watch}\n{order}")
    if watch.alarm:
        raise typer.Exit(ALARM)


def _is_folder(place: str) -> bool:
    return os.path.isdir(place) or is_remote(place)


def _are_images(source: str) -> bool:
    """Return whether a source is images to classify, rather than answers."""
    from poise.data.opening import has_scheme
    from poise.images.find import SUFFIXES

    if source.lower().endswith(SUFFIXES) or (has_scheme(source) and not os.path.exists(source)):
        return True
    return _is_folder(source) and (read_manifest(source) or {}).get("format") != ANSWERS


def _classified(stored: Calibration, source: str, method: str, options: dict[str, Any], quiet: bool) -> list[_Row]:
    """Return the answers of images; those that failed have none."""
    from poise.data.opening import open_images
    from poise.data.sources import count_images, read_all
    from poise.inference.classifier import Classifier

    shards = open_images([source])
    classifier: Classifier[Any] = Classifier.from_calibration(stored, method=[method], **options)
    rows = []
    for outcome in watched(classifier.each(read_all(shards)), count_images(shards), quiet=quiet):
        if isinstance(outcome, dict):
            found = outcome[method]
            members = None if found.prediction_set is None else list(found.prediction_set)
            assert found.raw_confidence is not None
            assert found.match is not None
            label = found.rejected or found.label
            rows.append(_Row(found.source, found.raw_confidence, found.match, label, members))
    if not rows:
        raise InvalidOptionError(
            f"None of the images of '{source}' can be answered.", hint="`poise classify` says why."
        )
    return rows


def _check_conditions(answers: str, conditions: Conditions) -> None:
    """Refuse answers of another model, list of labels or template, where the file beside them says so."""
    from poise.calibration import Conditions

    try:
        found = (read_manifest(answers) or {})["settings"] if _is_folder(answers) else None
        made = Conditions.from_dict(found or json.loads(read_bounded(row_settings.settings_file(Path(answers)))))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return  # rows of stdout have no such file, and those of a cluster no hash of the model
    conditions.check(made, reads_views=False)  # `poise classify` has compared the views, where they matter


class _Row(NamedTuple):
    source: str
    confidence: float
    match: float | None  # where features are known
    label: str
    members: list[str] | None  # of the prediction set


def _lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file of JSON lines or CSV, or of a folder of parts."""
    if path.lower().endswith(".csv"):
        yield from _csv_lines(path)
        return
    if not _is_folder(path):
        yield from map(json.loads, read_bounded(path, _MAX_BYTES).splitlines())
        return
    from poise.jobs.collect import read_rows

    columns = ("source", "method", "label", "rejected", "raw_confidence", "match", "prediction_set", "error_code")
    for batch in read_rows(path, columns=columns)[1]:
        for row in batch.to_pylist():
            yield {**row, "error": row["error_code"]}


def _csv_lines(path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file as those of JSON."""
    text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    for row in csv.DictReader(io.StringIO(text, newline="")):
        numbers = {name: float(row[name]) if row[name] else None for name in ("raw_confidence", "match")}
        members = json.loads(row["prediction_set"]) if row["prediction_set"] else None
        yield {**row, **numbers, "prediction_set": members, "error": row["error.code"] or None}


def _read(path: str, method: str, *, matched: bool) -> list[_Row]:
    """Return the answers of one method; images that failed have none."""
    rows, others = [], set()
    try:
        for number, row in enumerate(_lines(path), 1):
            if row["error"] is not None:
                continue
            if row["method"] != method:
                others.add(str(row["method"]))
            elif row["raw_confidence"] is None:
                raise InvalidOptionError(
                    f"Line {number} of '{path}' has no raw_confidence.",
                    hint="Classify with --calibration, so that answers are those of the calibrated method.",
                )
            else:
                numbers = _number(row["raw_confidence"]), _number(row["match"]) if matched else None
                members = row["prediction_set"]
                kept = None if members is None else [str(member) for member in members]
                rows.append(_Row(str(row["source"]), *numbers, str(row["rejected"] or row["label"]), kept))
    except OSError as problem:
        raise InvalidOptionError(
            f"'{path}' can't be read: {reason_of(problem)}.",
            hint="Give the file of `poise classify --out`; --top-k makes it smaller.",
        ) from None
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        if isinstance(problem, PoiseError):
            raise
        raise InvalidOptionError(
            f"'{path}' has a line that is not a row of results.",
            hint="Give what `poise classify --calibration ... --out FILE` wrote, .jsonl or .csv, or its FOLDER/.",
        ) from None
    if not rows:
        found = f"It has those of: {', '.join(sorted(others))}." if others else "It has none."
        raise InvalidOptionError(f"'{path}' has no answers of {method}.", hint=f"{found} See --method.")
    return rows


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError
    return float(value)
