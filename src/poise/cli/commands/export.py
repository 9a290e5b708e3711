"""`poise export`: classifiers as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from poise.cli.input.shared_options import (
    AugMix,
    Coverage,
    FixedViews,
    Init,
    Labels,
    LabelsFile,
    LongLabel,
    Model,
    OnLongLabel,
    Seed,
    Template,
    Threads,
    labels_from,
    stored_options,
)
from poise.cli.output.verbose import Verbose
from poise.cli.typer_app import Commands
from poise.defaults import DEFAULT_MODEL, DEFAULT_VIEWS
from poise.errors import InvalidOptionError

app = Commands(help="Export a classifier, to run it without poise.")


@app.callback()
def export() -> None:
    """Export a classifier, to run it without poise."""


@app.command()
def onnx(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Output file (.onnx).")],
    labels: Labels = None,
    labels_file: LabelsFile = None,
    model: Model = DEFAULT_MODEL,
    method: Annotated[str, typer.Option(help="zero-shot, zero or mta.")] = "zero-shot",
    template: Template = None,
    init: Init = "template",
    views: FixedViews = DEFAULT_VIEWS,
    augmix: AugMix = False,
    seed: Seed = 0,
    on_long_label: OnLongLabel = LongLabel.error,
    threads: Threads = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="File of `poise calibrate`. Labels, model, template, init, views, AugMix and seed are taken "
            "from it, unless you give them."
        ),
    ] = None,
    coverage: Coverage = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="With --calibration: add the decision to answer or to abstain, so that at most "
            "this share of the answers is wrong."
        ),
    ] = None,
    int8: Annotated[
        Path | None,
        typer.Option(
            help="Quantise the image tower to 8 bits: smaller and less exact. Give a folder with "
            "images like those to be classified, which set the ranges of its activations."
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Write a classifier as one ONNX file: image tower, labels, method and calibration."""
    names = None
    if calibration is None or labels is not None or labels_file is not None:
        names = labels_from(labels, labels_file)
    if model.startswith("onnx:"):
        raise InvalidOptionError(f"--model is '{model}', which is exported already.", hint="Give the original model.")
    options: dict[str, Any] = {
        "model": model,
        "template": template,
        "init": init,
        "views": views,
        "augmix": augmix,
        "seed": seed,
        "on_long_label": on_long_label.value,
        "coverage": coverage,
        "max_error": max_error,
    }
    chosen = stored_options(ctx, options, calibration, names)
    if ctx.get_parameter_source("method").name != "DEFAULT" or "method" not in chosen:  # type: ignore[union-attr]
        chosen["method"] = [method]
    from poise.export import export_onnx
    from poise.images import find_images
    from poise.inference.classifier import Classifier

    samples = None if int8 is None else find_images([str(int8)])
    export_onnx(Classifier(**chosen, device="cpu", dtype="float32"), out, int8=samples)
    typer.echo(
        f"Written: {out} ({out.stat().st_size / 2**20:.1f} MiB). Use it with: poise classify IMAGES --model onnx:{out}"
    )
