"""`poise data`: list the known datasets, check those on disk, and download one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.cli.commands.listing import datasets, show
from poise.cli.exit_codes import SOME_FAILED
from poise.cli.typer_app import Commands
from poise.errors import InvalidOptionError
from poise.report.tables.table import Line, Table

if TYPE_CHECKING:
    from poise.data import CheckResult

app = Commands(help="List the known datasets, check those on disk, or download one.")

DataFolder = Annotated[Path, typer.Option("--data", help="Folder that contains the datasets (CoOp's or TPT's layout).")]


@app.command("list")
def list_datasets() -> None:
    """List the known datasets, like `poise list datasets`."""
    show(datasets())


def _show(findings: Sequence[CheckResult]) -> None:
    """Print the status of each dataset, its problems and what to do."""
    lines, notes = [], []
    for finding in findings:
        expected = f"/{finding.expected}" if finding.expected is not None else ""
        images, classes = f"{finding.images}{expected}", str(finding.classes)
        facts = (images, classes, finding.class_hash, finding.layout, finding.folder) if finding.classes else [""] * 5
        lines.append(Line.of(finding.status, finding.name, *facts))
        notes += [f"{finding.name}: {text}" for text in (*finding.problems, finding.hint) if text]
    columns = ("Status", "Name", "Images", "Classes", "Order", "Layout", "Folder")
    show(Table("", columns, tuple(lines), tuple(notes), texts=len(columns)))


def _answered_by(run: Path, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the hashes of the images that a run has answered, by dataset; it must have those of all ``names``."""
    from poise.evaluate.storage.checks import read_header
    from poise.evaluate.storage.parts import pixels_in, read_parts

    read_header(run)
    pixels = pixels_in(read_parts(run), run.name)
    if not pixels:
        raise InvalidOptionError(
            f"The run '{run}' has no hashes of images to compare with.",
            hint="It is empty, or an earlier version of poise wrote it.",
        )
    if unknown := [name for name in names if name not in pixels]:
        raise InvalidOptionError(
            f"The run '{run}' has answered no images of '{unknown[0]}'.",
            hint=f"Write the dataset as in the run: {', '.join(pixels)}.",
        )
    return pixels


@app.command()
def check(
    data: DataFolder,
    names: Annotated[
        list[str] | None, typer.Argument(help="Datasets; by default all known ones, or those of --run.")
    ] = None,
    deep: Annotated[bool, typer.Option(help="Decode every image instead of a sample.")] = False,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of a run: also compare all images that it has answered with what they were."),
    ] = None,
) -> None:
    """Check which datasets are complete, missing or damaged. The exit code is 3 if anything is wrong.

    A dataset that is missing altogether counts only if it is named.
    """
    from poise.data import check_all

    pixels = None if run is None else _answered_by(run, names or [])
    findings, fine = check_all(data, names or list(pixels or {}), deep=deep, pixels=pixels)
    _show(findings)
    if not fine:
        raise typer.Exit(SOME_FAILED)


@app.command()
def get(name: Annotated[str, typer.Argument(help="Name of the dataset.")], data: DataFolder) -> None:
    """Download a dataset with torchvision, and CoOp's split file, then check it."""
    from poise.data.download import get as fetch

    finding = fetch(name, data)
    _show([finding])
    if finding.status != "ok":
        raise typer.Exit(SOME_FAILED)
