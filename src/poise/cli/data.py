"""`poise data list|check|get`: which datasets there are, what of them is on disk, and how to get the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.cli.exit_codes import SOME_FAILED
from poise.cli.listing import datasets, show
from poise.report.table import Line, Table

if TYPE_CHECKING:
    from poise.data import CheckResult

app = typer.Typer(no_args_is_help=True, help="Datasets: list them, check what is on disk, fetch what can be fetched.")

DataFolder = Annotated[
    Path, typer.Option("--data", help="The folder that holds the datasets (CoOp's or TPT's layout).")
]


@app.command("list")
def list_datasets() -> None:
    """The catalogue of datasets, as `poise list datasets` shows it."""
    show(datasets())


def _show(findings: Sequence[CheckResult]) -> None:
    """Print the state of each dataset, then what is wrong and what to do."""
    lines, notes = [], []
    for finding in findings:
        expected = f"/{finding.expected}" if finding.expected is not None else ""
        images, classes = f"{finding.images}{expected}", str(finding.classes)
        facts = (images, classes, finding.class_hash, finding.layout, finding.folder) if finding.classes else [""] * 5
        lines.append(Line.of(finding.status, finding.name, *facts))
        notes += [f"{finding.name}: {text}" for text in (*finding.problems, finding.hint) if text]
    columns = ("Status", "Name", "Images", "Classes", "Order", "Layout", "Folder")
    show(Table("", columns, tuple(lines), tuple(notes), texts=len(columns)))


@app.command()
def check(
    data: DataFolder,
    names: Annotated[list[str] | None, typer.Argument(help="Datasets; all of the catalogue by default.")] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Decode every image, not a sample.")] = False,
) -> None:
    """Say per dataset what is there, missing or damaged. Exit code 3 if anything is wrong.

    A dataset that is not there at all counts only if it is asked for by name.
    """
    from poise.data import check_all

    findings, fine = check_all(data, names or [], deep=deep)
    _show(findings)
    if not fine:
        raise typer.Exit(SOME_FAILED)


@app.command()
def get(name: Annotated[str, typer.Argument(help="The dataset.")], data: DataFolder) -> None:
    """Fetch a dataset with torchvision's downloader and CoOp's split file, then check it."""
    from poise.data.download import get as fetch

    finding = fetch(name, data)
    _show([finding])
    if finding.status != "ok":
        raise typer.Exit(SOME_FAILED)
