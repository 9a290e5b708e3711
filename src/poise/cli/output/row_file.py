"""The file that `poise classify --out` names: the format of its rows, and whether it may be written."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from poise.cli.input.job_options import is_folder
from poise.errors import InvalidOptionError, RunConflictError
from poise.filesystems import is_remote, name_of

Format = StrEnum("Format", ["table", "json", "jsonl", "csv", "parquet"])
_BY_SUFFIX = {".txt": Format.table, **{f".{name}": name for name in Format if name is not Format.table}}


def format_of(out: str | None, chosen: Format | None) -> Format:
    """Return the format of the rows: the one that was chosen, or that of the file's suffix; a table if there is none.

    Raises:
        InvalidOptionError: The name says another format than the one that was chosen, or none that is known.
    """
    if is_folder(out):
        return _format_of_parts(str(out), chosen)
    suffix = Path(out or "").suffix.lower()
    named = _BY_SUFFIX.get(suffix)
    if chosen is None and suffix and named is None:
        raise InvalidOptionError(
            f"--out is '{out}', whose suffix names no format.",
            hint=f"Give a name that ends in {', '.join(_BY_SUFFIX)}, or --format.",
        )
    found = chosen or named or Format.table
    if named not in (None, Format.table, found):
        raise InvalidOptionError(
            f"--format {found.value} and --out '{out}' are different formats.",
            hint="Leave --format out, or change the suffix.",
        )
    if found is Format.parquet and out is None:
        raise InvalidOptionError("Parquet is not printed.", hint="Add --out FILE.parquet, or --out FOLDER/ for parts.")
    return found


def _format_of_parts(out: str, chosen: Format | None) -> Format:
    """Return Parquet, the format of parts; refuse others, and remote folders that are named like a file."""
    if chosen not in (None, Format.parquet):
        raise InvalidOptionError(
            f"--format {chosen.value} is for one file, and --out '{out}' is a folder of parts in Parquet.",
            hint="Leave --format out, and make a file of the parts with `poise collect FOLDER --out FILE.csv`.",
        )
    if is_remote(out) and Path(name_of(out)).suffix.lower() in _BY_SUFFIX and not out.partition("?")[0].endswith("/"):
        raise InvalidOptionError(
            f"--out '{out}' is named like a file, and what is remote is a folder of parts.",
            hint="Add a slash, or write a file on this machine and copy it.",
        )
    return Format.parquet


def check_file(file: Path, format: Format, options: dict[str, Any]) -> None:
    """Refuse to write over rows, unless the user asked for it.

    Raises:
        InvalidOptionError: It is a folder.
        RunConflictError: It has content, and neither ``resume`` nor ``overwrite`` is among the options.
    """
    if file.is_dir():
        raise InvalidOptionError(
            f"--out '{file}' is a folder.", hint=f"Give a file, or '{file}/' with a slash for parts in Parquet."
        )
    if options["resume"] or options["overwrite"] or not file.is_file() or not file.stat().st_size:
        return
    resume = "--resume to continue it, " if format is Format.jsonl else ""
    raise RunConflictError(
        f"'{file}' is there already.", hint=f"Add {resume}--overwrite to replace it, or give another --out."
    )


def partial(file: Path) -> Path:
    """Return the file for the rows of a run that was stopped, in formats that are written at the end.

    >>> partial(Path("rows.csv")).as_posix()
    'rows.partial.csv'
    """
    return file.with_name(f"{file.stem}.partial{file.suffix}")
