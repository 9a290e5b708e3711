"""The Typer application of all commands, whose help is plain text that is readable in 80 columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from poise.options import AnswerOptions, ComputeOptions, PromiseOptions, rows
from poise.serve.limits import Limits


def _names(kind: type[Any], prefix: str = "") -> list[str]:
    """Return the options of a class that some command takes."""
    return [prefix + row.name for row in rows(kind) if row.about.commands]


_MANY = 12  # options of a command whose help is divided into groups
GROUPS: dict[str, tuple[str, ...]] = {  # those of `poise.options` follow from their class
    "Images and labels": ("data", "dataset", "limit", "labelled", "labels", "labels_file", "on_long_label"),
    "Model and method": (
        *_names(AnswerOptions),
        *("method", "framework", "view_engine", "seeds", "temperature", "set"),
    ),
    "Confidence and guarantees": (*_names(PromiseOptions), "calibrate", "confidence", "threshold"),
    "Output": (
        *("format", "out", "name", "top_k", "details", "sort_into", "links", "resume", "dry_run", "allow_changes"),
        *("price", "metrics_port", "quiet", "verbose"),
    ),
    "Network": (
        *("host", "port", "allowed_host", "token_file", "allow_anonymous", "access_log", "demo", "docs", "browser"),
    ),
    "Limits": (*_names(Limits, "max_"), "batch_wait"),
    "Where and how it runs": (
        *_names(ComputeOptions),
        *("config", "chunk", "workers", "threads", "engine", "address", "actors", "replicas"),
    ),
}
_GROUP_OF = {name: group for group, names in reversed(GROUPS.items()) for name in names}  # the first one counts


class _Readable:
    """Help without columns that are cut off; one sentence names the environment variables of all options."""

    params: list[Any]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, and only those environment variables that do not follow the pattern."""
        for option in self.params:
            if isinstance(option, TyperOption):
                option.show_envvar = option.envvar is not None and option.show_envvar
        shown = [(option, record) for option in self.params if (record := option.get_help_record(ctx))]
        many = sum(option.param_type_name == "option" for option, _ in shown) >= _MANY
        sections: dict[str, list[Any]] = {name: [] for name in ("Arguments", *GROUPS, "Options")}
        for option, record in shown:
            group = _GROUP_OF.get(option_name(option), "Options") if many else "Options"
            sections["Arguments" if option.param_type_name == "argument" else group].append(record)
        help_option = self.get_help_option(ctx)  # type: ignore[attr-defined]  # of the command
        if help_option and (record := help_option.get_help_record(ctx)):
            sections["Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if hasattr(self, "format_commands"):
            self.format_commands(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let variables have the names of their options where those differ from the names in Python."""
        for option in self.params:
            name = option_name(option) if isinstance(option, TyperOption) else None
            if name and name != option.name and option.envvar is None and ctx.auto_envvar_prefix:
                option.envvar, option.show_envvar = f"{ctx.auto_envvar_prefix}_{name.upper()}", False
        return list(super().parse_args(ctx, args))  # type: ignore[misc]

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence for the list of commands, which is wrapped there instead of cut off."""
        return str(super().get_short_help_str(1000))  # type: ignore[misc]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Add the sentence, with the first option as its example."""
        options = [option for option in self.params if isinstance(option, TyperOption) and option.envvar is None]
        options = [option for option in options if option.allow_from_autoenv and option.expose_value]
        if not options or not ctx.auto_envvar_prefix:
            return
        example = f"{ctx.auto_envvar_prefix}_{str(options[0].name).upper()}"
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(
                f"Environment variables can set the options as well: {example} is {options[0].opts[0]}."
            )


def option_name(option: Any) -> str:
    """Return what an option is called, which may differ from its name in Python."""
    return str(option.opts[0]).removeprefix("--").replace("-", "_")


class _Command(_Readable, TyperCommand):
    pass


class _Group(_Readable, TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Let a command have two words, as `poise calibrate plan` beside `poise calibrate IMAGES`."""
        if (both := " ".join(args[:2])) in self.commands:
            args = [both, *args[2:]]
        return super().resolve_command(ctx, args)


class Commands(typer.Typer):
    """A group of commands; without a command it prints its help."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, no_args_is_help=True, rich_markup_mode=None, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Add a function as a command."""
        return super().command(name, cls=_Command, **settings)
