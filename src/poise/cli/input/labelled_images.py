"""Labelled images as users have them: a folder with one subfolder per label, or a CSV file."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poise.errors import InvalidDatasetError, reason_of
from poise.files import read_bounded
from poise.text import as_words

MAX_ROWS = 1_000_000  # of a CSV file
_FIRST = 2  # the number of the line after the header


def read_labelled(images: Path) -> tuple[list[Any], list[str], list[str]]:
    """Return the paths of the images (or their stored features), their labels, and the labels in order."""
    if images.is_dir():
        from poise.data import open_dataset
        from poise.data.stored_features import has_features

        stored = has_features(str(images))
        found = open_dataset(f"{'features' if stored else 'folder'}:{images}")
        truth = [found.classes[item.label] for item in found.items]
        items = [item if stored else Path(str(item.source())) for item in found.items]
        return items, truth, list(found.classes)
    hint = "Give a folder with one subfolder per label, or a CSV file in UTF-8 whose first line is: path,label"
    try:
        text = read_bounded(images).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter(text))
        rows = list(itertools.islice(reader, MAX_ROWS + 1))
    except (OSError, ValueError, csv.Error) as problem:
        raise InvalidDatasetError(
            f"'{images}' can't be read as labelled images: {reason_of(problem)}.", hint=hint
        ) from None
    if len(rows) > MAX_ROWS:
        raise InvalidDatasetError(
            f"'{images}' has more than {MAX_ROWS:,} rows.", hint=f"Give at most {MAX_ROWS:,} labelled images."
        )
    if missing := [column for column in ("path", "label") if rows and column not in (reader.fieldnames or ())]:
        columns = ", ".join(map(repr, reader.fieldnames or ()))
        several = " For several labels per image: --independent." if "labels" in (reader.fieldnames or ()) else ""
        raise InvalidDatasetError(f"'{images}' has no column {missing[0]}, but {columns[:200]}.", hint=hint + several)
    from poise.prompts.labels import NONE_OF_THEM

    for number, row in enumerate(rows, start=_FIRST):
        for column in ("path", "label"):
            if not (row.get(column) or "").strip():
                raise InvalidDatasetError(
                    f"'{images}' has no {column} in line {number}.",
                    hint=f"Fill in the columns path,label.{f' {NONE_OF_THEM}' if column == 'label' else ''}",
                )
    paths, truth = [images.parent / row["path"] for row in rows], [row["label"].strip() for row in rows]
    if not rows:
        raise InvalidDatasetError(f"'{images}' has no rows.", hint=hint)
    return paths, truth, list(dict.fromkeys(truth))


def delimiter(text: str) -> str:
    """Return what separates the columns of a table: the character that comes first after a column's name.

    Spreadsheets write semicolons or tabs where the comma is the decimal mark.

    >>> delimiter("path;label"), delimiter("path,label")
    (';', ',')
    """
    header = text.partition("\n")[0]
    return min((mark for mark in ",;\t" if mark in header), key=header.index, default=",")


def check_truth(images: Path, truth: Sequence[str], known: Sequence[str]) -> None:
    """Refuse labels that are not known, before a model is loaded; the message has the line of each in a CSV file.

    Raises:
        InvalidOptionError: There are such labels.
    """
    words = {as_words(label) for label in known}
    first: dict[str, int] = {}
    for number, label in enumerate(truth, start=_FIRST):
        if as_words(label) not in words:
            first.setdefault(label, number)
    if first:
        from poise.inference.calibrating import unknown_labels
        from poise.prompts.labels import suggested

        where = (lambda number: f" in line {number}") if images.is_file() else (lambda number: "")
        raise unknown_labels(
            f"'{images}' has", [f"{suggested(label, known)}{where(number)}" for label, number in first.items()]
        )
