"""Parquet files with a column of encoded images, or of paths: ``parquet:/path/{000..012}.parquet``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from poise.data.items import LARGEST, NO_LABEL, Held, Item, Remote
from poise.errors import InvalidDatasetError
from poise.filesystems import folder_of, is_remote, join, name_of, open_input
from poise.text import as_utf8

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "bytes", "content", "data")  # columns of encoded images
PATHS = ("path", "file", "file_name", "filename", "image_path", "filepath")
IDS = ("id", "key", "__key__", *PATHS)
_ROWS = 32  # read at a time, since a row has a whole image


@dataclass(frozen=True)
class ParquetShard:
    """One Parquet file, read row by row."""

    path: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.path)

    def items(self) -> Iterator[Item]:
        """Yield an item per row."""
        import pyarrow.parquet as pq

        with open_input(self.path) as stream:
            file = pq.ParquetFile(stream)
            column, names = image_column(file.schema_arrow, self.name), _id_column(file.schema_arrow)
            row = 0
            for batch in file.iter_batches(_ROWS, columns=list(dict.fromkeys([column, *names]))):
                ids = batch.column(names[0]).to_pylist() if names else [None] * len(batch)
                for cell, name in zip(batch.column(column).to_pylist(), ids, strict=True):
                    given = row if name is None else name
                    yield Item(as_utf8(f"{self.name.removesuffix('.parquet')}/{given}"), NO_LABEL, self._place(cell))
                    row += 1

    def images(self) -> float:
        """Return the number of rows."""
        return count_rows(self.path)

    def _place(self, cell: Any) -> Any:
        """Return where the image of a cell is; what is wrong with it is said when it is read."""
        if isinstance(cell, dict):  # as Hugging Face has them
            cell = cell["path"] if cell["bytes"] is None else cell["bytes"]
        if isinstance(cell, bytes):
            return Held(cell[: LARGEST + 1])
        return Inside(folder_of(self.path), "" if cell is None else str(cell))


def count_rows(address: str) -> int:
    """Return the number of rows of a Parquet file, which its end says."""
    import pyarrow.parquet as pq

    with open_input(address) as stream:
        return int(pq.ParquetFile(stream).metadata.num_rows)


@dataclass(frozen=True, slots=True)
class Inside:
    """A file in a folder or below it, named by a table that may come from anybody."""

    folder: str
    path: str

    def load(self) -> Any:
        """Return the path, or the bytes of a remote file.

        Raises:
            InvalidDatasetError: There is no path, or it leads out of the folder.
        """
        parts = PurePosixPath(self.path).parts
        if not parts or os.path.isabs(self.path) or ".." in parts or is_remote(self.path):
            raise InvalidDatasetError(
                f"The row names the file '{self.path[:200]}'.", hint="Paths in a table are relative to its folder."
            )
        place = join(self.folder, self.path)
        if is_remote(place):
            return Remote(place).load()
        from pathlib import Path

        return Path(place)


def image_column(schema: Any, name: str) -> str:
    """Return the column with the images: of bytes, or of paths."""
    import pyarrow as pa

    def holds_bytes(kind: Any) -> bool:
        if pa.types.is_struct(kind):
            return {"bytes", "path"} <= {field.name for field in kind}
        return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))

    of_bytes = [field.name for field in schema if holds_bytes(field.type)]
    chosen = next((known for known in IMAGES if known in of_bytes), of_bytes[0] if len(of_bytes) == 1 else None)
    texts = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    chosen = chosen or next((known for known in PATHS if known in texts), None)
    if chosen is None:
        raise InvalidDatasetError(
            f"'{name}' has no column of images, but {', '.join(schema.names)[:200]}",
            hint=f"Use a column of bytes ({', '.join(IMAGES)}) or of paths ({', '.join(PATHS)})",
        )
    return chosen


def _id_column(schema: Any) -> list[str]:
    import pyarrow as pa

    plain = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_integer(field.type)]
    return [known for known in IDS if known in plain][:1]
