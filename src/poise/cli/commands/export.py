"""`poise export`: classifiers as files for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poise.cli.input.option_parameters import FIXED_VIEWS, Chosen, takes_options
from poise.cli.input.shared_options import Labels, LabelsFile, Threads, labels_from, stored_options
from poise.cli.output.verbose import Verbose
from poise.cli.typer_app import Commands
from poise.errors import InvalidOptionError

app = Commands(help="Export a classifier, to run it without poise.")


@app.callback()
def export() -> None:
    """Export a classifier, to run it without poise."""


@app.command()
@takes_options("export", views=FIXED_VIEWS, method={"help": "zero-shot, zero or mta.", "default": "zero-shot"})
def onnx(
    *,
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Output file (.onnx).")],
    labels: Labels = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    threads: Threads = None,
    verbose: Verbose = False,
) -> None:
    """Write a classifier as one ONNX file: image tower, labels, method and calibration."""
    names = None
    if options["calibration"] is None or labels is not None or labels_file is not None:
        names = labels_from(labels, labels_file)
    if options["model"].startswith("onnx:"):
        raise InvalidOptionError(
            f"--model is '{options['model']}', which is exported already.", hint="Give the original model."
        )
    chosen = stored_options(ctx, {**options, "method": [options["method"]]}, names)
    from poise.export import export_onnx
    from poise.inference.classifier import Classifier

    export_onnx(Classifier(**chosen, device="cpu", dtype="float32"), out)
    typer.echo(
        f"Written: {out} ({out.stat().st_size / 2**20:.1f} MiB). Use it with: poise classify IMAGES --model onnx:{out}"
    )
