"""Options that several commands share: what answers depend on, and where they are computed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.errors import InvalidLabelsError
from poise.threads import set_threads

LongLabel = StrEnum("LongLabel", ["error", "truncate"])
EngineName = StrEnum("EngineName", ["local", "ray"])

Labels = Annotated[str | None, typer.Option(help="Comma-separated labels.")]
LabelsFile = Annotated[Path | None, typer.Option(help="Text file with one label per line.")]
Model = Annotated[str, typer.Option(help="Model (see `poise list models`).")]
Template = Annotated[str | None, typer.Option(help="Prompt with {} for the label.", show_default="a photo of a {}.")]
Init = Annotated[str, typer.Option(help="Where tuning starts: a name of `poise list inits`, or a prompt file.")]


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


Views = Annotated[
    Any,
    typer.Option(
        parser=_views,
        metavar="N|auto",
        help="Views per image, including the plain view; auto: the fewest whose answers agree with 64, chosen "
        "on the images (60 or more).",
    ),
]
FixedViews = Annotated[  # of commands that have no images to choose on
    Any, typer.Option(parser=_fixed_views, metavar="N", help="Views per image, including the plain view.")
]
AugMix = Annotated[bool, typer.Option(help="Mix the augmented views with AugMix.")]
Seed = Annotated[int, typer.Option(help="Seed of the augmented views.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps or openvino.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 (CUDA, openvino), float8 (CUDA), float64.")]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Images computed together; changes results by rounding at most.", show_default="by device"),
]
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
CalibrationFile = Annotated[
    Path | None,
    typer.Option(
        help="File of `poise calibrate`. Labels, model, method, template, init, views, AugMix and seed are "
        "taken from it, unless you give them."
    ),
]
Coverage = Annotated[
    float | None, typer.Option(help="With --calibration: add prediction sets with this coverage, such as 0.9.")
]
MaxError = Annotated[
    float | None, typer.Option(help="With --calibration: abstain so that at most this share of the answers is wrong.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        help="Name that requests may give in their Host header, beside those of this machine; repeatable.",
        show_default="any if other machines are served, else none",
    ),
]
MaxPixels = Annotated[int, typer.Option(help="Most pixels of an image.")]
MaxBody = Annotated[int, typer.Option(help="Most bytes of a request.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any that is free.")]
Engine = Annotated[EngineName, typer.Option(help="Where to run: local, or ray (on a Ray cluster).")]
Address = Annotated[str, typer.Option(help="Ray address (auto or host:port); omit to start Ray locally.")]
Actors = Annotated[int, typer.Option(help="Ray worker processes; 0 = one per GPU, or one per 4 CPUs.")]
OnLongLabel = Annotated[LongLabel, typer.Option(help="Reject or truncate labels that are longer than the model reads.")]


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


def stored_options(
    ctx: typer.Context, options: Mapping[str, Any], calibration: Path | None, labels: list[str] | None
) -> dict[str, Any]:
    """Return the options of `poise.Classifier`, where the user gave none those of an ONNX file and a calibration."""
    found = {**options, "labels": labels}
    if str(options["model"]).startswith("onnx:"):
        from poise.export.reopen import onnx_options

        stored = onnx_options(str(options["model"]).removeprefix("onnx:"))
        found = unless_given(ctx, found, {**stored, "method": [stored["method"]]})
        found["labels"] = labels or stored["labels"]
    if calibration is not None:
        from poise.calibration import Calibration

        known = Calibration.load(calibration)
        found = unless_given(ctx, found, known.options())
        found |= {"calibration": known, "labels": labels or list(known.conditions.labels)}
    return found


def labels_from(labels: str | None, labels_file: Path | None) -> list[str]:
    """Return the labels that one of two options gives."""
    if (labels is None) == (labels_file is None):
        given = "No labels were given" if labels is None else "Both --labels and --labels-file were given"
        raise InvalidLabelsError(f"{given}.", hint="Give either --labels a,b,c or --labels-file FILE.")
    if labels_file is None:
        return [label.strip() for label in labels.split(",")] if labels and labels.strip() else []
    from poise.prompts.labels import read_labels

    return read_labels(labels_file)
