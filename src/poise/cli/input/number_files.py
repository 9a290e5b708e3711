"""Arrays in files of users, with limits on what is read: npy, npz, parquet and CSV; and the options that name them."""

from __future__ import annotations

import csv
import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from poise.errors import InvalidDatasetError, InvalidOptionError, reason_of
from poise.files import read_bounded
from poise.text import as_words

MAX_BYTES = 1 << 30  # of a file, and of the array in it
_SUFFIXES = (".npy", ".npz", ".parquet", ".csv")
Numbers = np.ndarray[Any, Any]
KINDS = (("--probabilities",), ("--logits",), ("--features", "--text", "--scale"))  # options that go together
_ROWS = "one row per image (npy, npz, parquet, CSV)"
Probabilities = Annotated[Path | None, typer.Option(help=f"Instead of images: probabilities of any model, {_ROWS}.")]
Logits = Annotated[Path | None, typer.Option(help=f"Instead of images: logits, {_ROWS}.")]
Features = Annotated[
    Path | None, typer.Option(help="Instead of images: image features, one row per image; with --text and --scale.")
]
Text = Annotated[Path | None, typer.Option(help="With --features: text features, one row per label.")]
Scale = Annotated[float | None, typer.Option(help="With --features: factor from cosine to logit, such as 100.")]


def check_numbers(given: set[str], *more: str) -> None:
    """Raise an error unless the options of one kind of numbers are given, together with ``more``."""
    if given not in [{*kind, *more} for kind in KINDS]:
        *first, last = (" and ".join([*kind, *more]) for kind in KINDS)
        raise InvalidOptionError(
            f"{', '.join(sorted(given)) or 'No number'} {'was' if len(given) < 2 else 'were'} given.",
            hint=f"Give {'; '.join(first)}; or {last}.",
        )


def given_probabilities(numbers: Mapping[str, Any]) -> tuple[Numbers, list[str] | None]:
    """Return the probabilities that the options give, and the labels where the file has names of columns."""
    from poise.calibration import probabilities_of_features, probabilities_of_logits

    if "--probabilities" in numbers:
        return read_table(numbers["--probabilities"], "probabilities")
    if "--logits" in numbers:
        logits, names = read_table(numbers["--logits"], "logits")
        return probabilities_of_logits(logits), names
    image, text = (read_table(numbers[f"--{name}"], name)[0] for name in ("features", "text"))
    return probabilities_of_features(image, text, numbers["--scale"]), None


def read_table(path: Path, name: str) -> tuple[Numbers, list[str] | None]:
    """Return an array [rows, columns] of numbers, and the names of its columns where the file has them.

    Args:
        path: a file; a CSV file has the names of the columns in its first line. A single column of lists in a Parquet
            file is an array as well.
        name: of the array in an npz file that has several.
    """
    read = {".npy": _npy, ".npz": _npz, ".parquet": _parquet, ".csv": _csv}
    try:
        return read[_suffix(path)](read_bounded(path, MAX_BYTES), name)
    except (
        OSError,
        ValueError,
        KeyError,
        EOFError,
        csv.Error,
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
    ) as problem:
        raise _unreadable(path, problem) from None


def read_truth(path: Path, labels: Sequence[str]) -> Numbers:
    """Return the correct classes: an array of positions, or the column 'label' of a table with names or positions."""
    if _suffix(path) in (".npy", ".npz"):
        array, _ = read_table(path, "truth")
        return array
    import pyarrow as pa

    try:
        content = read_bounded(path, MAX_BYTES)
        column = _label_column(content, parquet=_suffix(path) == ".parquet")
        given = [str(value).strip() for value in column.cast(pa.string()).to_pylist()]
    except (OSError, ValueError, KeyError, csv.Error, NotImplementedError) as problem:
        raise _unreadable(path, problem) from None
    position = {as_words(label): at for at, label in enumerate(labels)}
    if all(as_words(text) in position for text in given):
        return np.array([position[as_words(text)] for text in given], dtype=np.int64)
    for row, text in enumerate(given, start=1):
        if not (text.isascii() and text.isdecimal() and len(text) < 10):
            raise InvalidDatasetError(
                f"'{path}' has the label {text[:100]!r} in row {row}, which is none of the {len(labels)} labels.",
                hint="Give names of labels, or positions from 0.",
            )
    return np.array(list(map(int, given)), dtype=np.int64)


def _suffix(path: Path) -> str:
    if (suffix := path.suffix.lower()) not in _SUFFIXES:
        raise InvalidOptionError(f"'{path}' is no file of numbers.", hint=f"Give a file that ends in {_listed()}.")
    return suffix


def _npy(content: bytes, name: str) -> tuple[Numbers, None]:
    """Read an array without trusting its header: its size must be that of the file."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its version is {version}")
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = header(stream)
    except (tokenize.TokenError, SyntaxError, TypeError, RecursionError, MemoryError):  # NumPy parses it as Python
        raise ValueError("its header is damaged") from None
    if dtype.kind not in "fiu":
        raise ValueError(f"it has values of the type {dtype}, not numbers")
    rest = content[stream.tell() :]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"its shape {shape} is not that of its content")
    return np.frombuffer(rest, dtype).reshape(shape, order="F" if fortran else "C"), None


def _npz(content: bytes, name: str) -> tuple[Numbers, None]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        info = names.get(name) or (next(iter(names.values())) if len(names) == 1 else None)
        if info is None:
            raise ValueError(f"it has no array '{name}', but {', '.join(list(names)[:20])[:200] or 'nothing'}")
        with archive.open(info) as file:
            array = file.read(MAX_BYTES + 1)
    if len(array) > MAX_BYTES:
        raise ValueError(f"its array is larger than {MAX_BYTES >> 20} MiB")
    return _npy(array, name)


def _parquet(content: bytes, name: str) -> tuple[Numbers, list[str] | None]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    size = pq.read_metadata(io.BytesIO(content))
    if size.num_rows * size.num_columns * 8 > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB of numbers")
    table = pq.read_table(io.BytesIO(content))
    only = table.column(0).combine_chunks() if table.num_columns == 1 else None
    if only is not None and (pa.types.is_list(only.type) or pa.types.is_fixed_size_list(only.type)):
        values = _numeric(table.column_names[0], only.flatten())
        if not len(only) or len(values) % len(only) or only.null_count:
            raise ValueError("its lists have different lengths")
        lengths = {len(row) for row in only}
        if len(lengths) > 1:
            raise ValueError("its lists have different lengths")
        return values.reshape(len(only), -1), None
    return _columns(table), table.column_names


def _csv(content: bytes, name: str) -> tuple[Numbers, list[str]]:
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    names = _first_line(content)
    if all(map(_is_number, names)) and names != [str(at) for at in range(len(names))]:
        raise ValueError("its first line has numbers, not the names of the columns")
    table = pa_csv.read_csv(
        io.BytesIO(content),
        read_options=pa_csv.ReadOptions(block_size=64 << 20),
        convert_options=pa_csv.ConvertOptions(column_types=dict.fromkeys(names, pa.float64())),
    )
    return _columns(table), names


def _label_column(content: bytes, *, parquet: bool) -> Any:
    """Return the column 'label' of a table."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    names = pq.read_schema(io.BytesIO(content)).names if parquet else _first_line(content)
    if "label" not in names:
        raise ValueError(f"it has no column label, but {', '.join(names)[:200]}")
    if parquet:
        return pq.read_table(io.BytesIO(content), columns=["label"]).column("label")
    options = pa_csv.ConvertOptions(include_columns=["label"], column_types={"label": pa.string()})
    return pa_csv.read_csv(io.BytesIO(content), convert_options=options).column("label")


def _first_line(content: bytes) -> list[str]:
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    return [name.strip() for name in next(csv.reader(text), [])]


def _columns(table: Any) -> Numbers:
    if not table.num_rows or not table.num_columns:
        raise ValueError("it has no rows")
    return np.column_stack(
        [_numeric(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
    )


def _numeric(name: str, column: Any) -> Numbers:
    import pyarrow as pa

    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        raise ValueError(f"its column {name[:100]!r} has values of the type {column.type}, not numbers")
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _listed() -> str:
    return f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}"


def _unreadable(path: Path, problem: Exception) -> InvalidDatasetError:
    return InvalidDatasetError(
        f"'{path}' can't be read as numbers: {reason_of(problem)[:300]}.",
        hint=f"Give {_listed()}; a CSV file in UTF-8 has the names of its columns in the first line.",
    )
