"""Options that several commands share: what answers depend on, and where they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.errors import InvalidLabelsError
from poise.options import Options, rows
from poise.text import printable
from poise.threads import set_threads

EngineName = StrEnum("EngineName", ["local", "ray"])
_ABOUT = {row.name: row.about for row in rows(Options)}

Labels = Annotated[
    str | None,
    typer.Option(help="Comma-separated labels; in a tree: 'animal > cat > tabby'; in groups: 'a,b | c,d'."),
]
LabelsFile = Annotated[
    Path | None,
    typer.Option(
        help="Text file with one label per line ('|' between groups), or CSV file with a column path: paths in a tree."
    ),
]
# Options of `poise.options` in commands that take only a few of them.
Model = Annotated[str, typer.Option(help=_ABOUT["model"].help)]
Device = Annotated[str, typer.Option(help=_ABOUT["device"].help)]
Dtype = Annotated[str, typer.Option(help=_ABOUT["dtype"].help)]
LogitScale = Annotated[float | None, typer.Option(help=_ABOUT["logit_scale"].help)]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        envvar="POISE_THREADS",
        callback=lambda count: count if count is None else _use(count),
        help="Threads on a CPU.",
        show_default="the cores that this process may use",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        help="Name that requests may give in their Host header, beside those of this machine; repeatable.",
        show_default="any if other machines are served, else none",
    ),
]


def _port(given: str) -> int:
    """Return a port; click's own message has neither the value nor the reason that Kubernetes has for it."""
    text = str(given)
    if text.isascii() and text.isdigit() and int(text) <= _LAST_PORT:
        return int(text)
    trap = " Kubernetes sets POISE_SERVE_PORT so where a service is named poise-serve: rename it, or set "
    trap += "enableServiceLinks: false."
    problem = f"{printable(text)[:100]!r} is not a port; use a number from 0 to {_LAST_PORT}."
    raise typer.BadParameter(problem + (trap if "://" in text else ""))


_LAST_PORT = 65535
Port = Annotated[int, typer.Option(parser=_port, metavar="N", help="Port to listen on; 0 for any that is free.")]
Engine = Annotated[EngineName, typer.Option(help="Where to run: local, or ray (on a Ray cluster).")]
Address = Annotated[str, typer.Option(help="Ray address (auto or host:port); omit to start Ray locally.")]
Actors = Annotated[int, typer.Option(help="Ray worker processes; 0 = one per GPU, or one per 4 CPUs.")]


def _use(count: int) -> int:
    """Set the number of threads as soon as it is parsed: before torch is imported."""
    set_threads(count)
    return count


def given(ctx: typer.Context, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the options that the user gave, on the command line or in the environment."""
    return {
        name: value
        for name, value in options.items()
        if (source := ctx.get_parameter_source(name)) and source.name != "DEFAULT"
    }


def unless_given(ctx: typer.Context, options: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with the stored values of those that the user did not give."""
    return {**options, **stored, **given(ctx, options)}


def stored_options(ctx: typer.Context, options: Mapping[str, Any], labels: Sequence[str] | None) -> dict[str, Any]:
    """Return all options; where the user gave none, those of an ONNX file and of a calibration, which is read here."""
    found, file = dict(options), options["calibration"]
    if str(options["model"]).startswith("onnx:"):
        from poise.export.reopen import onnx_options

        stored = onnx_options(str(options["model"]).removeprefix("onnx:"))
        found = unless_given(ctx, found, {**stored, "method": [stored["method"]]})
    if file is not None:
        from poise.inference.guarantees import read, trusted_options

        known = read(file)
        stored = trusted_options(known, given(ctx, found))
        found = {**unless_given(ctx, found, stored), "calibration": known}
    own = {name: tuple(found.get(name, ())) for name in ("labels", "groups", "parents")}
    found = {**found, **(written_labels(labels, own["parents"]) if labels else own)}
    if found.get("independent"):
        from poise.inference.independent import ZERO_SHOT, independent_method

        chosen = found["method"] if "method" in given(ctx, options) else ZERO_SHOT
        found["method"] = [independent_method(chosen)]
    return found


def written_labels(written: Sequence[str], parents: Sequence[str] = ()) -> dict[str, Any]:
    """Return the options that labels give as people write them; ``parents``: of labels that are not in a tree."""
    from poise.prompts.labels import split_groups, split_paths

    labels, groups = split_groups(written)
    labels, paths = split_paths(labels)
    return {"labels": tuple(labels), "groups": tuple(groups), "parents": tuple(paths or parents)}


def labels_from(labels: str | None, labels_file: Path | None) -> list[str]:
    """Return the labels that one of two options gives, as they are written."""
    if (labels is None) == (labels_file is None):
        given = "No labels were given" if labels is None else "Both --labels and --labels-file were given"
        raise InvalidLabelsError(f"{given}.", hint="Give either --labels a,b,c or --labels-file FILE.")
    from poise.prompts.labels import read_labels, split_written

    if labels_file is None:
        return split_written(labels) if labels and labels.strip() else []
    return read_labels(labels_file)
