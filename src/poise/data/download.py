"""Downloads datasets: the images with torchvision, the split file from CoOp's Google Drive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from poise.data.catalog import DatasetRow, row
from poise.data.locations import existing_folders, find_split_file, has_images, how_to_get
from poise.data.verify import CheckResult, check
from poise.errors import InvalidDatasetError, reason_of


def fetch_with_torchvision(kind: str, root: Path) -> object:
    """Download one dataset into the folder below ``root`` that torchvision chooses; the catalogue lists it."""
    import torchvision

    maker: Any = getattr(torchvision.datasets, kind)
    return maker(root=str(root), download=True)


def fetch_split(drive: str, folder: Path, name: str) -> object:
    """Download a split file from Google Drive (needs the package ``gdown``)."""
    from torchvision.datasets.utils import download_file_from_google_drive

    return download_file_from_google_drive(drive, str(folder), name)


def get(name: str, root: str | Path) -> CheckResult:
    """Download the missing files of a dataset, then check it."""
    dataset = row(name)
    folder = Path(root).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if not has_images(dataset, folder):
        if not dataset.torchvision:
            raise InvalidDatasetError(f"{dataset.title} can't be fetched automatically.", hint=how_to_get(dataset))
        _attempt(dataset, "images", lambda: fetch_with_torchvision(dataset.torchvision, folder))
        if not has_images(dataset, folder):
            raise InvalidDatasetError(f"{dataset.title}: no images after the download.", hint=how_to_get(dataset))
    if dataset.split_file and find_split_file(dataset, folder) is None:
        _, image_folder = next(existing_folders(dataset, folder))
        top = folder / image_folder.relative_to(folder).parts[0]  # the same in every layout
        _attempt(dataset, dataset.split_file, lambda: fetch_split(dataset.split_drive, top, dataset.split_file))
    return check(name, folder)


def _attempt(dataset: DatasetRow, files: str, fetch: Callable[[], object]) -> None:
    try:
        fetch()
    except (OSError, RuntimeError, ImportError) as error:
        message = f"{dataset.title}: {files} could not be fetched: {reason_of(error)}."
        raise InvalidDatasetError(message, hint=how_to_get(dataset, by_hand=True)) from error
