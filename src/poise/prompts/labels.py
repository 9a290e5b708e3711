"""Class names in a text file."""

from __future__ import annotations

from pathlib import Path

from poise.errors import InvalidLabelsError

_MAX_BYTES = 16 << 20  # of a labels file: far more than any label set, and a device file never ends


def read_labels(path: str | Path) -> list[str]:
    """The labels in a UTF-8 text file, one per line; surrounding spaces and empty lines are dropped.

    Raises:
        InvalidLabelsError: The file can't be read, is not UTF-8, or is larger than 16 MiB.
    """
    hint = "Give a text file with one label per line, in UTF-8."
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
        text = content.decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, or a path with a null character
        raise InvalidLabelsError(f"Can't read labels from '{path}': {error}.", hint=hint) from None
    if len(content) > _MAX_BYTES:
        raise InvalidLabelsError(f"'{path}' is larger than {_MAX_BYTES >> 20} MiB.", hint=hint)
    return [line.strip() for line in text.splitlines() if line.strip()]
