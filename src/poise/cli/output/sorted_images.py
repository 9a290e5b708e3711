"""`poise classify --sort-into`: each image in a folder with the name of its label."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from poise.errors import CalibrationImageError, InvalidOptionError
from poise.files import storage_errors
from poise.results import Failure, Result
from poise.text import file_name

UNSURE = "unsure"  # folder of images that are not answered
KNOWN = "calibration"  # folder of images that the calibration was made with, which are not answered again


class SortedImages:
    """Copies or links images into one folder per label. Nothing is overwritten: another file's name gets a number.

    Args:
        root: where the folders are made.
        labels: of the classifier, and the nodes of their tree. A folder has the label's name with underscores for
            spaces, as `poise calibrate` and `poise evaluate` read it.
        links: make symbolic links instead of copies.
    """

    def __init__(self, root: Path, labels: Sequence[str], *, links: bool = False) -> None:
        self.root, self.links = root, links
        names = {label: label.replace(" ", "_") for label in labels}
        times = Counter(name.casefold() for name in (*names.values(), UNSURE, KNOWN))
        # Some file systems ignore case; a label that shares a folder with another one gets a mark of its own.
        self.folders = {
            label: file_name(name) if times[name.casefold()] == 1 else file_name(f"{label} ")
            for label, name in names.items()
        }

    def add(self, result: Result) -> Path:
        """Put the image of a result into its folder, and return the file there."""
        unsure = result.decision == "abstain" or result.rejected is not None
        return self._put_into(UNSURE if unsure else self.folders[result.node or result.label], result.source)

    def add_failed(self, failure: Failure) -> None:
        """Put a calibration image into a folder of its own; what can't be read is left where it is."""
        if failure.code == CalibrationImageError.code:
            self._put_into(KNOWN, failure.source)

    def _put_into(self, name: str, image: str) -> Path:
        source, folder = Path(image).resolve(), self.root / name
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for number in count(1):
                place = folder / (f"{source.stem}-{number}{source.suffix}" if number > 1 else source.name)
                if self._put(source, place):
                    return place
        raise AssertionError("there is always another number")

    def _put(self, source: Path, place: Path) -> bool:
        """Make the file unless another one is there; return whether the image is there now."""
        try:
            if self.links:
                place.symlink_to(source)
                return True
            with place.open("xb") as file:  # fails if it exists, also as a broken link
                try:
                    with source.open("rb") as image:
                        shutil.copyfileobj(image, file)
                except BaseException:
                    place.unlink()
                    raise
            return True
        except FileExistsError:
            return os.path.exists(place) and filecmp.cmp(source, place, shallow=False)


def check_sorting(methods: Sequence[str], *, files: bool) -> None:
    """Raise an error unless there is one answer per image, and images are files."""
    if len(methods) > 1:
        raise InvalidOptionError(
            f"--sort-into needs one answer per image, and there are {len(methods)} methods.",
            hint="Give one --method.",
        )
    if not files:
        raise InvalidOptionError("--sort-into copies files, and these images are in containers.", hint="Unpack them.")
