"""Gives commands the options of `poise.options`, so that no command lists them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.options import MachineOptions, ModelOptions, Options, Row, rows
from poise.serve.limits import Limits

Chosen = dict[str, Any]  # what a command receives: the values of its options, by name


def takes_options(command: str, **changes: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``options`` of a command by all options that the command takes, and ``limits`` likewise.

    Typer reads the signature, so help, parsing and environment variables follow from it. The command receives the
    values of the options as one dict, and those of `poise.serve.limits.Limits`, called --max-NAME, as another.

    Args:
        command: a name of `poise.options.COMMANDS`, or another that options name.
        changes: where an option of this command differs: its ``default``, or settings of `typer.Option`.
    """
    return _takes({"options": _taken(Options, command), "limits": _taken(Limits, command, "max_")}, changes)


def takes_run_options(**shown: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``options`` by the options of benchmark runs; None where a configuration file may have one.

    Args:
        shown: defaults of runs, where they differ from those of a classifier.
    """
    taken = {row.name: row for row in rows(ModelOptions, MachineOptions)}
    defaults = {name: shown.get(name) or row.about.shown or str(row.default) for name, row in taken.items()}
    unset = {name: {"default": None, "show_default": default} for name, default in defaults.items()}
    return _takes({"options": taken}, {**unset, "views": {**FIXED_VIEWS, **unset["views"]}})


def _takes(
    taken: Mapping[str, Mapping[str, Row]], changes: Mapping[str, Mapping[str, Any]]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace parameters by options: those that ``taken`` has under their name."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        groups = {name: rows for name, rows in taken.items() if name in signature.parameters}

        def run(**given: Any) -> None:
            chosen = {
                group: {row.name: given.pop(name) for name, row in rows.items()} for group, rows in groups.items()
            }
            function(**chosen, **given)

        functools.update_wrapper(run, function)
        del run.__dict__["__wrapped__"]  # whose signature has none of the options
        parameters: list[inspect.Parameter] = []
        for name, parameter in signature.parameters.items():
            added = [_parameter(option, row, **changes.get(option, {})) for option, row in groups.get(name, {}).items()]
            parameters += added if name in groups else [parameter]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def _taken(kind: type[Any], command: str, prefix: str = "") -> dict[str, Row]:
    """Return what a command takes of the options of a class, by the names of its parameters."""
    return {prefix + row.name: row for row in rows(kind) if command in row.about.commands}


def _parameter(name: str, row: Row, **changes: Any) -> inspect.Parameter:
    default = changes.pop("default", row.default)
    settings = {"help": row.about.help, **({"show_default": row.about.shown} if row.about.shown else {}), **changes}
    # Methods are separated by commas.
    kinds: dict[str, Any] = {"calibration": Path | None, "method": str}
    kind = kinds.get(row.name, Any if "parser" in settings else row.kind)
    kind = kind | None if default is None and kind is not Any else kind
    annotation = Annotated[kind, typer.Option(**settings)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


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
    "help": "Views per image, including the plain view; auto: the fewest whose answers agree with the paper's 64, "
    "chosen on the images (60 or more).",
}
FIXED_VIEWS: Mapping[str, Any] = {"parser": _fixed_views, "metavar": "N"}  # of commands that have none
