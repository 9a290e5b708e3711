"""The list of images to label that `poise calibrate plan` writes, and `poise calibrate` reads with its labels."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.cli.input.labelled_images import delimiter
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.files import read_bounded, write_atomic

if TYPE_CHECKING:
    from poise.calibration import Drawn, Plan
    from poise.data.items import Item
    from poise.data.sources import Shard

COLUMNS = ("path", "label", "part", "confidence", "cutoff", "listed")
RANDOM, ABOVE = "random", "above"  # values of the column part


def files_of(shards: Sequence[Shard], positions: Sequence[int], folder: Path) -> list[Path]:
    """Return the file of each image at these positions, for people to look at.

    Images in tars, tables and remote filesystems are copied into ``folder``, under names that come from their ids but
    can't lead elsewhere.
    """
    from poise.data.items import Item
    from poise.data.sources import read_all

    wanted, found = set(positions), dict[int, Path]()
    for at, item in enumerate(read_all(shards) if wanted else ()):
        if at in wanted and isinstance(item, Item):
            found[at] = _file(item, folder / f"{at:06d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', item.id)[-80:]}")
        if len(found) == len(wanted):
            break
    return [found[at] for at in positions]


def _file(item: Item, place: Path) -> Path:
    """Return the file of an image, written at ``place`` if it has none."""
    from poise.data.stored_features import StoredRow
    from poise.images.read import image_suffix

    if isinstance(item.read, StoredRow):
        if os.path.isfile(item.id):
            return Path(item.id)
        raise InvalidOptionError(
            f"The features of '{item.id}' are stored, and the image itself is not a file here.",
            hint="Plan from the images themselves, so that somebody can look at them.",
        )
    source = item.source()
    if isinstance(source, Path):
        return source
    suffix = image_suffix(source)
    named = place if place.suffix.lower() == suffix else place.with_name(place.name + suffix)
    write_atomic(named, source)
    return named


def write_list(out: Path, plan: Plan, paths: Mapping[int, Path], confidence: Sequence[float]) -> None:
    """Write a row for each image to label: CSV, or tasks of Label Studio if the name ends in .json.

    The order is random, so that it does not tell which part an image belongs to.

    Args:
        out: the list.
        plan: the images to label, by their positions among those with an answer.
        paths: the file of each.
        confidence: of all images with an answer.
    """
    rows = _rows(plan, {at: os.path.relpath(path, out.parent) for at, path in paths.items()}, confidence)
    if out.suffix == ".json":
        tasks = [
            {"data": {"image": row["path"], **{name: row[name] for name in COLUMNS if name != "label"}}} for row in rows
        ]
        text = json.dumps(tasks, indent=1, ensure_ascii=False) + "\n"
    else:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    write_atomic(out, text.encode())


def _rows(plan: Plan, paths: Mapping[int, str], confidence: Sequence[float]) -> list[dict[str, Any]]:
    import numpy as np

    parts = [(int(at), RANDOM) for at in plan.random] + [(int(at), ABOVE) for at in plan.above]
    order = np.random.default_rng(len(parts)).permutation(len(parts))
    cutoff = "" if plan.cutoff is None else f"{plan.cutoff:.9g}"
    return [
        dict(zip(COLUMNS, (paths[at], "", part, f"{confidence[at]:.9g}", cutoff, str(len(parts))), strict=True))
        for at, part in (parts[place] for place in order)
    ]


def read_drawn(images: Path) -> Drawn | None:
    """Return how the images of a labelled list were drawn; None where the file is no such list, or all are random.

    The file has been read as labelled images before. A list from which rows were removed is refused: images that are
    left out because they are hard to label would make it another sample.
    """
    if not images.is_file():
        return None
    text = read_bounded(images).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter(text))
    if not {"part", "confidence", "cutoff", "listed"} <= {*(reader.fieldnames or ())}:
        return None
    import numpy as np

    from poise.calibration import Drawn
    from poise.prompts.labels import NONE_OF_THEM

    rows = list(reader)
    try:
        listed = {int(row["listed"]) for row in rows}
        above = np.array([{RANDOM: False, ABOVE: True}[row["part"]] for row in rows])
        confidence = np.array([float(row["confidence"]) for row in rows])
        cutoffs = {float(row["cutoff"]) for row in rows} if above.any() else set()
    except (KeyError, ValueError, TypeError):
        listed, cutoffs = set(), set()
    if len(listed) != 1 or len(cutoffs) > 1 or not ((confidence >= 0) & (confidence <= 1)).all():
        raise InvalidDatasetError(
            f"'{images}' is no list of one plan.", hint=f"Leave its columns {', '.join(COLUMNS[2:])} as they are."
        )
    if listed != {len(rows)}:
        raise InvalidDatasetError(
            f"'{images}' has {len(rows)} of the {listed.pop()} images of its plan.",
            hint=f"Label all of them: hard ones may not be left out. {NONE_OF_THEM}",
        )
    return Drawn(above, cutoffs.pop(), confidence) if cutoffs else None
