"""`poise list models|methods|datasets`: the names that other commands take."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Kind(StrEnum):
    """What can be listed."""

    models = "models"
    methods = "methods"
    datasets = "datasets"


def list_names(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    search: Annotated[str, typer.Argument(help="Show only rows that contain this text, in upper or lower case.")] = "",
) -> None:
    """List the models, methods or datasets that can be named."""
    if kind is Kind.methods:
        from poise import methods

        about = {name: methods.get(name).about for name in methods.names()}
        rows = [
            (name, each.description + (f" ({each.citation})" if each.citation else "")) for name, each in about.items()
        ]
    elif kind is Kind.models:
        from poise.backbones import describe_models

        rows = describe_models()
    else:
        from poise import data

        rows = [(name, data.row(name).title) for name in data.names()]
    rows = [row for row in rows if search.lower() in " ".join(row).lower()]
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"{name:<{width}}  {text}".rstrip())
