"""Checks which images of a dataset are on disk, missing or damaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from poise.data.catalog import DatasetRow, datasets, names, row
from poise.data.edits import tidy
from poise.data.items import ImageSet, Item
from poise.data.locations import ABSENT, check_root, how_to_get
from poise.data.opening import open_dataset
from poise.errors import InvalidDatasetError, PoiseError, UnreadableImageError
from poise.text import counted

Status = Literal["ok", "partial", "damaged", "absent"]


@dataclass(frozen=True)
class CheckResult:
    """The state of one dataset on disk."""

    name: str
    status: Status  #: "partial": readable, but fewer images than published; "damaged": see ``problems``
    images: int = 0
    expected: int | None = None
    classes: int = 0
    class_hash: str = ""
    layout: str = ""
    folder: str = ""
    problems: tuple[str, ...] = ()
    hint: str = ""


def check(
    name: str,
    root: str | Path | None = None,
    *,
    deep: bool = False,
    sample: int = 16,
    pixels: Mapping[str, str] | None = None,
) -> CheckResult:
    """Check one dataset.

    Args:
        name: Name of the dataset, as in `poise.data.open_dataset`.
        root: Data folder; not needed with a scheme.
        deep: Whether to decode every image instead of a sample.
        sample: Number of images to decode, evenly spaced over the dataset.
        pixels: Hashes of pixels (`poise.images.LoadedImage.key`) by id. All these images are decoded, and must be there
            with the same pixels.
    """
    known = row(name) if name in datasets else None
    try:
        dataset = open_dataset(name, root)
    except InvalidDatasetError as error:
        if known is None:
            raise
        state: Status = "absent" if error.code == ABSENT else "damaged"
        return CheckResult(name, state, expected=known.images, problems=(error.message,), hint=error.hint)
    present = [item for item in dataset.items if not isinstance(item.read, str) or Path(item.read).is_file()]
    problems = [
        *_missing(dataset, present, pixels or {}),
        *unreadable(present, None if deep else sample, pixels or {}),
        *(misplaced(known, dataset) if known else ()),
    ]
    incomplete = _incomplete(known, len(present)) if known else []
    status: Status = "damaged" if problems else "partial" if incomplete else "ok"
    hints = {"damaged": how_to_get(known) if known else "", "partial": _PARTIAL}
    return CheckResult(
        name=dataset.name,
        status=status,
        images=len(present),
        expected=known.images if known else None,
        classes=len(dataset.classes),
        class_hash=dataset.class_hash,
        layout=dataset.layout,
        folder=dataset.folder,
        problems=(*problems, *incomplete),
        hint=hints.get(status, ""),
    )


_PARTIAL = "Results on part of a dataset can't be compared with published ones."


def _missing(dataset: ImageSet, present: Sequence[Item], pixels: Mapping[str, str]) -> list[str]:
    """Describe the images without a file, and those that were answered and are no longer in the dataset."""
    there, ids = set(present), {item.id for item in dataset.items}
    lost = _describe("image is", "images are", "missing", [item.id for item in dataset.items if item not in there])
    gone = [name for name in pixels if name not in ids]
    return lost + _describe("image is", "images are", "no longer in the dataset", gone)


def _incomplete(known: DatasetRow, images: int) -> list[str]:
    """Describe a number of images that is not the published one."""
    if images == known.images:
        return []
    return [f"{counted(images, 'image')}; the published test split has {known.images}."]


def _describe(one: str, many: str, problem: str, ids: Sequence[str]) -> list[str]:
    return [f"{len(ids)} {one if len(ids) == 1 else many} {problem}, e.g. '{ids[0]}'."] if ids else []


def _ids(items: Sequence[Item]) -> list[str]:
    return [item.id for item in items]


def unreadable(items: Sequence[Item], sample: int | None, pixels: Mapping[str, str]) -> list[str]:
    """Describe the images that can't be decoded or have other pixels.

    They are all images, or ``sample`` of them, evenly spaced, and all those whose ``pixels`` are known.
    """
    from poise.images import read_image

    damaged: list[Item] = []
    replaced: list[Item] = []
    reason = ""
    step = 1 if sample is None else max(1, len(items) // max(1, sample))
    for item in (item for at, item in enumerate(items) if at % step == 0 or item.id in pixels):
        try:
            key = read_image(item.source()).key
            if pixels.get(item.id, key) != key:
                replaced.append(item)
        except (UnreadableImageError, InvalidDatasetError, OSError) as error:
            reason = reason or (error.message if isinstance(error, PoiseError) else str(error))
            damaged.append(item)
    problems = _describe("image is", "images are", f"damaged ({reason})", _ids(damaged))
    return problems + _describe("image is", "images are", "not the same as before", _ids(replaced))


def misplaced(known: DatasetRow, dataset: ImageSet) -> list[str]:
    """Describe the images whose path contains another class than their label."""
    if not known.class_encoded_in:
        return []

    def class_in_path(item: Item) -> str:
        path = PurePosixPath(item.id)
        return known.edit(str(path.parent) if known.class_encoded_in == "folder" else path.stem.rpartition("_")[0])

    wrong = [item for item in dataset.items if class_in_path(item) != tidy(dataset.classes[item.label])]
    return _describe("image has", "images have", "a label that its path contradicts", _ids(wrong))


def check_all(
    root: str | Path,
    datasets: Sequence[str] = (),
    *,
    deep: bool = False,
    sample: int = 16,
    pixels: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[list[CheckResult], bool]:
    """Check several datasets, by default all of the catalogue, and return the results and whether all are fine.

    Args:
        root: the folder of the datasets.
        datasets: names; absent ones count as a failure only if they are named here.
        deep: as of `check`, like the other arguments.
        sample: number of images that are decoded.
        pixels: hashes of the images by id, for each dataset by its name.
    """
    in_catalogue = [row(name) for name in datasets if ":" not in name]
    if in_catalogue or not datasets:
        check_root(root)
    known = pixels or {}
    results = [check(name, root, deep=deep, sample=sample, pixels=known.get(name)) for name in datasets or names()]
    accepted = {"ok"} if datasets else {"ok", "absent"}
    any_present = any(result.status != "absent" for result in results)
    return results, any_present and all(result.status in accepted for result in results)
