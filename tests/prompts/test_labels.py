"""The reader of labels files."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise.errors import InvalidLabelsError
from poise.prompts.labels import read_labels


def test_labels_are_lines_without_a_byte_order_mark_and_empty_lines(tmp_path: Path) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes("\ufeffcat\r\n\n  great white shark \nécole\n".encode())
    assert read_labels(file) == ["cat", "great white shark", "école"]


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"x" * ((16 << 20) + 1)], ids=["not UTF-8", "too large"])
def test_what_is_no_labels_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes(content)
    with pytest.raises(InvalidLabelsError, match="one label per line"):
        read_labels(file)


def test_a_file_that_never_ends_is_refused() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("this system has no /dev/zero")
    with pytest.raises(InvalidLabelsError, match="16 MiB"):
        read_labels("/dev/zero")


def test_an_absent_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidLabelsError, match="Can't read labels"):
        read_labels(tmp_path / "none.txt")
