"""Says which files of a folder are not read as images, so that photos in other formats are not lost without a word."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from poise.cli.output.verbose import remark
from poise.images.find import count_skipped, in_words
from poise.text import counted


def say_skipped(sources: Iterable[str | Path], *, quiet: bool = False) -> None:
    """Print how many files in local folders are skipped because of their suffix, if any."""
    from poise.data.stored_features import has_features

    places = map(os.path.expanduser, map(str, sources))
    folders = (place for place in places if os.path.isdir(place) and not has_features(place))
    if found := count_skipped(map(Path, folders)):
        remark(f"{counted(found.total(), 'file')} skipped: {in_words(found)}", quiet=quiet)


def say_skipped_labelled(images: Path, *, quiet: bool = False) -> None:
    """Print how many files are skipped in the folders of labels; other files beside these folders mean nothing."""
    if images.is_dir():
        say_skipped((entry for entry in images.iterdir() if not entry.name.startswith((".", "_"))), quiet=quiet)
