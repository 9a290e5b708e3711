"""Labels from a text file, one per line."""

from __future__ import annotations

from pathlib import Path

from poise.errors import InvalidLabelsError

_LARGEST = 16 * 2**20  # bytes: more than any list of labels, less than a device that never ends


def read_labels(path: Path) -> list[str]:
    """The labels in a UTF-8 text file; blank lines are skipped."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidLabelsError(
            f"Can't read labels from '{path}': {error}.", hint="Give a text file in UTF-8 with one label per line."
        ) from None
    if len(content) > _LARGEST:
        raise InvalidLabelsError(f"'{path}' has more than {_LARGEST:,} bytes.", hint="Give one label per line.")
    return [line.strip() for line in text.splitlines() if line.strip()]
