"""`poise data list|check|get`: which datasets there are, what of them is on disk, and how to get the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from poise.cli.exit_codes import SOME_FAILED

if TYPE_CHECKING:
    from poise.data import CheckResult

app = typer.Typer(no_args_is_help=True, help="Datasets: list them, check what is on disk, fetch what can be fetched.")

DataFolder = Annotated[
    Path, typer.Option("--data", help="The folder that holds the datasets (CoOp's or TPT's layout).")
]
COLOURS = {"ok": "green", "partial": "yellow", "damaged": "red", "absent": "bright_black"}


@app.command("list")
def list_datasets() -> None:
    """The catalogue: classes, test images, AugMix under both published protocols, licence."""
    from poise import data

    rows = [data.row(name) for name in data.names()]
    typer.echo(f"{'name':<16} {'classes':>7} {'images':>7}  {'augmix':<8} {'title':<22}  licence")
    for row in rows:
        # Only ImageNet's shifts differ between TPT's scripts and those of C-TPT and O-TPT.
        augmix = "c-tpt" if row.augmix != row.augmix_c_tpt else "on" if row.augmix else "off"
        typer.echo(f"{row.name:<16} {row.classes:>7} {row.images:>7}  {augmix:<8} {row.title:<22}  {row.licence}")
    typer.echo("\nAlso: folder:/path (a folder per class), wds:/path/{000..012}.tar, hf:org/name:split.")
    typer.echo("augmix c-tpt: off under TPT's protocol, on under that of C-TPT and O-TPT.")


def show(finding: CheckResult) -> None:
    """Print one finding: a line of facts, then what is wrong and what to do."""
    status = typer.style(f"{finding.status:<8}", fg=COLOURS[finding.status])
    facts = ""
    if finding.classes:
        expected = f"/{finding.expected}" if finding.expected is not None else ""
        facts = f"{finding.images}{expected} images, {finding.classes} classes, order {finding.class_hash}, "
        facts += f"{finding.layout} layout in {finding.folder}"
    typer.echo(f"{status} {finding.name:<16} {facts}".rstrip())
    for line in (*finding.problems, finding.hint):
        if line:
            typer.echo(f"{'':<9}{line}")


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
    for finding in findings:
        show(finding)
    if not fine:
        raise typer.Exit(SOME_FAILED)


@app.command()
def get(name: Annotated[str, typer.Argument(help="The dataset.")], data: DataFolder) -> None:
    """Fetch a dataset with torchvision's downloader and CoOp's split file, then check it."""
    from poise.data.download import get as fetch

    finding = fetch(name, data)
    show(finding)
    if finding.status != "ok":
        raise typer.Exit(SOME_FAILED)
