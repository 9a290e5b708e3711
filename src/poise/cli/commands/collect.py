"""`poise collect`: merge, filter and sample the parts of a job."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.output.verbose import Quiet, remark
from poise.errors import InvalidOptionError
from poise.files import storage_errors
from poise.text import counted

Format = StrEnum("Format", ["parquet", "csv", "jsonl"])


def collect(
    folder: Annotated[str, typer.Argument(help="Folder of `poise classify --out FOLDER/`, here or remote.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows to this file.", show_default="stdout")] = None,
    output: Annotated[
        Format | None, typer.Option("--format", help="Output format.", show_default="by the file's suffix, else csv")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help="Keep rows of which this holds, such as 'confidence < 0.5' or 'error_code != null'; repeatable."
        ),
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Comma-separated columns to keep.", show_default="all but features")
    ] = "",
    sample: Annotated[int | None, typer.Option(min=1, help="Draw this many rows at random.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Merge the parts of a job into one file, in memory that does not depend on their size."""
    from poise.jobs.collect import read_rows, sampled, write

    suffix = out.suffix.removeprefix(".") if out else ""
    format = output or (Format(suffix) if suffix in list(Format) else Format.csv)
    if out is None and format is Format.parquet:
        raise InvalidOptionError("Parquet is not printed.", hint="Add --out FILE.")
    schema, rows = read_rows(folder, where or (), [name.strip() for name in columns.split(",") if name.strip()])
    if sample is not None:
        rows = sampled(rows, sample, seed)
    place = Path(out or "/dev/stdout")
    with storage_errors(place):
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
        written = write(schema, rows, str(out) if out else sys.stdout, format.value)
    if out is not None:
        remark(f"{counted(written, 'row')} written to {out}.", quiet=quiet)
