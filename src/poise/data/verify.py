"""What is there of each dataset, what is missing or damaged, and how to get it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from poise.data.catalog import ROWS, DatasetRow, names, row
from poise.data.edits import tidy
from poise.data.items import ImageSet, Item
from poise.data.locations import ABSENT, check_root, how_to_get
from poise.data.opening import open_dataset
from poise.errors import InvalidDatasetError, PoiseError, UnreadableImageError

Status = Literal["ok", "partial", "damaged", "absent"]


@dataclass(frozen=True)
class CheckResult:
    """The state of one dataset on disk."""

    name: str
    status: Status  # "partial": readable, but fewer images than published; "damaged": something is wrong
    images: int = 0
    expected: int | None = None
    classes: int = 0
    class_hash: str = ""
    layout: str = ""
    folder: str = ""
    problems: tuple[str, ...] = ()
    hint: str = ""


def check(name: str, root: str | Path | None = None, *, deep: bool = False, sample: int = 16) -> CheckResult:
    """Look at one dataset; ``deep`` decodes every image, otherwise ``sample`` of them spread over the set."""
    known = ROWS.get(name)
    try:
        found = open_dataset(name, root)
    except InvalidDatasetError as problem:
        if known is None:
            raise
        status: Status = "absent" if problem.code == ABSENT else "damaged"
        return CheckResult(name, status, expected=known.images, problems=(problem.message,), hint=problem.hint)
    missing = [item for item in found.items if isinstance(item.read, str) and not Path(item.read).is_file()]
    gone = set(missing)
    problems = [_several("image is", "images are", "missing", missing)] if missing else []
    problems += unreadable([item for item in found.items if item not in gone], None if deep else sample)
    problems += misplaced(known, found) if known else []
    return _finding(found, known, len(found) - len(missing), problems)


def _finding(found: ImageSet, known: DatasetRow | None, images: int, problems: list[str]) -> CheckResult:
    expected = known.images if known else None
    status: Status = "damaged" if problems else "ok"
    hint = how_to_get(known) if known and problems else ""
    if expected is not None and images != expected:
        problems = [*problems, f"{images} images; the published test split has {expected}."]
        if status == "ok":
            status, hint = "partial", "Results on part of a dataset can't be compared with published ones."
    return CheckResult(
        found.name, status, images, expected, len(found.classes), found.class_hash, found.layout, found.folder,
        tuple(problems), hint,
    )  # fmt: skip


def _several(one: str, many: str, what: str, items: Sequence[Item]) -> str:
    return f"{len(items)} {one if len(items) == 1 else many} {what}, e.g. '{items[0].id}'."


def unreadable(items: Sequence[Item], sample: int | None) -> list[str]:
    """Images that can't be decoded, among ``sample`` of the items or all of them."""
    from poise.images import read_image

    chosen = items if sample is None else items[:: max(1, len(items) // max(1, sample))]
    bad: list[Item] = []
    reason = ""
    for item in chosen:
        try:
            read_image(item.source())
        except (UnreadableImageError, InvalidDatasetError, OSError) as problem:
            reason = reason or (problem.message if isinstance(problem, PoiseError) else str(problem))
            bad.append(item)
    return [_several("image is", "images are", f"damaged ({reason})", bad)] if bad else []


def misplaced(known: DatasetRow, found: ImageSet) -> list[str]:
    """Images whose path names another class than their label does."""

    def class_in_path(item: Item) -> str:
        path = PurePosixPath(item.id)
        if known.class_encoded_in == "folder":
            return known.edit(str(path.parent))
        return known.edit(path.stem.rpartition("_")[0])

    if not known.class_encoded_in:
        return []
    wrong = [item for item in found.items if class_in_path(item) != tidy(found.classes[item.label])]
    return [_several("image has", "images have", "a label that its path contradicts", wrong)] if wrong else []


def check_all(
    root: str | Path, wanted: Sequence[str] = (), *, deep: bool = False, sample: int = 16
) -> tuple[list[CheckResult], bool]:
    """Findings for the wanted datasets (all of the catalogue by default), and whether all is well.

    A dataset that is absent spoils the verdict only if it was asked for by name.
    """
    for name in wanted:
        if ":" not in name:
            row(name)
    if not wanted or any(":" not in name for name in wanted):
        check_root(root)
    findings = [check(name, root, deep=deep, sample=sample) for name in wanted or names()]
    fine = {"ok"} if wanted else {"ok", "absent"}
    some = any(finding.status != "absent" for finding in findings)
    return findings, some and all(finding.status in fine for finding in findings)
