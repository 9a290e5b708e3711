"""The members of a tar, for every reader of shards. A tar is never unpacked: names in it can't refer to other files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import BinaryIO

from poise.data.items import LARGEST
from poise.errors import InvalidDatasetError

SUFFIXES = frozenset(("jpg", "jpeg", "png", "webp"))


def members(file: BinaryIO) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
    """Yield key, kind and header of each regular member whose name has both: ``key.kind``.

    Raises:
        tarfile.TarError: The file is damaged or, which `tarfile` itself does not say, ends without the mark of its end.
    """
    with tarfile.open(fileobj=file, mode="r:") as tar:
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # which would keep the headers of the whole file
            key, _, kind = member.name.rpartition(".")
            if member.isreg() and key:
                yield key, kind.lower(), member
        file.seek(tar.offset)
        if file.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it is truncated")


def content_of(file: BinaryIO, member: tarfile.TarInfo) -> bytes:
    """Return the bytes of a member."""
    if member.size > LARGEST:
        raise InvalidDatasetError(
            f"'{member.name[:200]}' has {member.size:,} bytes.", hint=f"An image has at most {LARGEST:,} bytes."
        )
    file.seek(member.offset_data)
    content = file.read(member.size)
    if len(content) != member.size:
        raise InvalidDatasetError(f"'{member.name[:200]}' ends after {len(content)} of {member.size} bytes.")
    return content
