"""The list of images to label that `poise calibrate plan` writes, and `poise calibrate` reads with its labels."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.errors import InvalidDatasetError
from poise.files import read_bounded, write_atomic

if TYPE_CHECKING:
    from poise.calibration import Drawn, Plan

COLUMNS = ("path", "label", "part", "confidence", "cutoff", "listed")
RANDOM, ABOVE = "random", "above"  # values of the column part


def write_list(out: Path, plan: Plan, paths: Sequence[Path], confidence: Sequence[float]) -> None:
    """Write a row for each image to label: CSV, or tasks of Label Studio if the name ends in .json.

    The order is random, so that it does not tell which part an image belongs to.
    """
    rows = _rows(plan, [os.path.relpath(path, out.parent) for path in paths], confidence)
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


def _rows(plan: Plan, paths: Sequence[str], confidence: Sequence[float]) -> list[dict[str, Any]]:
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
    reader = csv.DictReader(io.StringIO(read_bounded(images).decode("utf-8-sig"), newline=""))
    if not {"part", "confidence", "cutoff", "listed"} <= {*(reader.fieldnames or ())}:
        return None
    import numpy as np

    from poise.calibration import Drawn

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
            hint="Label all of them: images that are left out, such as hard ones, would make it another sample.",
        )
    return Drawn(above, cutoffs.pop(), confidence) if cutoffs else None
