"""Gives commands the options of `poise.options`, so that no command lists them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.options import Options, Row, rows

Chosen = dict[str, Any]  # what a command receives: the values of its options, by name


def takes_options(command: str, **changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``options`` of a command by all options that the command takes.

    Typer reads the signature, so help, parsing and environment variables follow from it. The command receives the
    values as one dict.

    Args:
        command: a name of `poise.options.COMMANDS`.
        changes: where an option of this command differs: its ``default``, or settings of `typer.Option`.
    """
    taken = [row for row in rows(Options) if command in row.about.commands]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            options = {row.name: given.pop(row.name) for row in taken}
            function(options=options, **given)

        functools.update_wrapper(run, function)
        del run.__dict__["__wrapped__"]  # whose signature has none of the options
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            added = [_parameter(row, **changes.get(row.name, {})) for row in taken]
            parameters += added if parameter.name == "options" else [parameter]
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
        return run

    return decorate


def _parameter(row: Row, **changes: Any) -> inspect.Parameter:
    default = changes.pop("default", row.default)
    settings = {"help": row.about.help, **({"show_default": row.about.shown} if row.about.shown else {}), **changes}
    # Methods are separated by commas.
    kinds: dict[str, Any] = {"calibration": Path | None, "method": str}
    kind = kinds.get(row.name, Any if "parser" in settings else row.kind)
    annotation = Annotated[kind, typer.Option(**settings)]  # type: ignore[valid-type]
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _views(text: str) -> int | str:
    if str(text) != "auto" and not str(text).lstrip("-").isdigit():
        raise typer.BadParameter(f"{text!r} is neither a whole number nor 'auto'.")
    return text if str(text) == "auto" else int(text)


def _fixed_views(text: str) -> int:
    if str(text) == "auto":
        raise typer.BadParameter("'auto' is chosen on images: use `poise calibrate --views auto`, or give a number.")
    if not str(text).lstrip("-").isdigit():
        raise typer.BadParameter(f"{text!r} is not a whole number.")
    return int(text)


VIEWS_OR_AUTO: Mapping[str, Any] = {  # of commands that have images to choose on
    "parser": _views,
    "metavar": "N|auto",
    "help": "Views per image, including the plain view; auto: the fewest whose answers agree with 64, chosen on the "
    "images (60 or more).",
}
FIXED_VIEWS: Mapping[str, Any] = {"parser": _fixed_views, "metavar": "N"}  # of commands that have none
