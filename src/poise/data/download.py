"""Fetching datasets: torchvision's downloaders for the images, CoOp's published file for the split."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from poise.data.catalog import DatasetRow, row
from poise.data.locations import find_split_file, found_places, has_images, how_to_get
from poise.data.verify import CheckResult, check
from poise.errors import InvalidDatasetError

FetchImages = Callable[[str, Path], object]  # torchvision's class name, data folder
FetchSplit = Callable[[str, Path, str], object]  # Google Drive id, folder, file name


def fetch_with_torchvision(kind: str, root: Path) -> object:
    """Download and unpack one dataset below ``root`` where torchvision puts it; the catalogue knows that place."""
    import torchvision

    maker: Any = getattr(torchvision.datasets, kind)
    return maker(root=str(root), download=True)


def fetch_split(drive: str, folder: Path, name: str) -> object:
    """Download a split file from Google Drive (needs the package ``gdown``)."""
    from torchvision.datasets.utils import download_file_from_google_drive

    return download_file_from_google_drive(drive, str(folder), name)


def get(
    name: str,
    root: str | Path,
    *,
    images: FetchImages = fetch_with_torchvision,
    split: FetchSplit = fetch_split,
) -> CheckResult:
    """Fetch what is missing of ``name`` below ``root`` and look at the result.

    Raises:
        InvalidDatasetError: the dataset can't be downloaded, or a download failed; the message says what to do.
    """
    wanted = row(name)
    folder = Path(root).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if not has_images(wanted, folder):
        if not wanted.torchvision:
            raise InvalidDatasetError(f"{wanted.title} can't be fetched automatically.", hint=how_to_get(wanted))
        _attempt(wanted, "images", lambda: images(wanted.torchvision, folder))
        if not has_images(wanted, folder):
            raise InvalidDatasetError(f"{wanted.title}: no images after the download.", hint=how_to_get(wanted))
    if wanted.split_file and find_split_file(wanted, folder) is None:
        file, beside = wanted.split_file, split_folder(wanted, folder)
        _attempt(wanted, file, lambda: split(wanted.split_drive, beside, file))
    return check(name, folder)


def split_folder(wanted: DatasetRow, root: Path) -> Path:
    """The dataset's own folder below ``root``, whichever layout its images are in."""
    _, images = next(found_places(wanted, root))
    return root / images.relative_to(root).parts[0]


def _attempt(wanted: DatasetRow, what: str, fetch: Callable[[], object]) -> None:
    try:
        fetch()
    except (OSError, RuntimeError, ImportError) as problem:
        raise InvalidDatasetError(
            f"{wanted.title}: {what} could not be fetched: {problem}.",
            hint=how_to_get(wanted, by_hand=True),
        ) from problem
