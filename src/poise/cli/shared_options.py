"""Options that `poise classify` and `poise calibrate` share: what answers depend on, and where they are computed."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from poise.errors import InvalidLabelsError

LongLabel = StrEnum("LongLabel", ["error", "truncate"])
EngineName = StrEnum("EngineName", ["local", "ray"])

LabelsFile = Annotated[Path | None, typer.Option(help="Text file with one label per line.")]
Model = Annotated[str, typer.Option(help="Model (see `poise list models`).")]
Template = Annotated[str | None, typer.Option(help="Prompt with {} for the label.", show_default="a photo of a {}.")]
Init = Annotated[str, typer.Option(help="Where tuning starts: a name of `poise list inits`, or a prompt file.")]
Views = Annotated[int, typer.Option(help="Views per image, including the plain view.")]
AugMix = Annotated[bool, typer.Option(help="Mix the augmented views with AugMix.")]
Seed = Annotated[int, typer.Option(help="Seed of the augmented views.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, float16, bfloat16 or (on a CPU) float64.")]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Images computed together; changes results by rounding at most.", show_default="by device"),
]
OnLongLabel = Annotated[LongLabel, typer.Option(help="Reject or truncate labels that are longer than the model reads.")]


def labels_from(labels: str | None, labels_file: Path | None) -> list[str]:
    """Return the labels that one of two options gives."""
    if (labels is None) == (labels_file is None):
        raise InvalidLabelsError(
            "Labels must come from one option.", hint="Give either --labels a,b,c or --labels-file FILE."
        )
    if labels_file is None:
        return [label.strip() for label in labels.split(",")] if labels and labels.strip() else []
    from poise.prompts.labels import read_labels

    return read_labels(labels_file)
