"""Text files of a dataset, which may come from anybody: lists of classes, of images and of shards."""

from __future__ import annotations

from pathlib import Path

from poise.errors import InvalidDatasetError, reason_of
from poise.filesystems import read_whole

_MAX_BYTES = 16 << 20


def read_lines(path: Path | str) -> list[str]:
    """Return the lines that are not blank, without the white space around them.

    Raises:
        InvalidDatasetError: The file can't be read, is too large, or is not UTF-8.
    """
    try:
        text = read_whole(str(path), _MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise InvalidDatasetError(
            f"'{path}' can't be read: {reason_of(error)}.", hint="It is a text file in UTF-8."
        ) from None
    return [line.strip() for line in text.splitlines() if line.strip()]
