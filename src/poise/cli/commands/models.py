"""`poise models check` and `poise convert model`: models that people have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from poise.cli.commands.fit import convert_app
from poise.cli.input.shared_options import Device, Dtype, LogitScale
from poise.cli.typer_app import Commands

app = Commands(help="Look at a model before using it.")

DIFFERS = 3


@app.command("check")
def check(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_FOLDER", help="A model's name, or a folder.")],
    device: Device = "auto",
    dtype: Dtype = "auto",
    logit_scale: LogitScale = None,
) -> None:
    """Load a model, print what was understood of it, and compare its features with those of its own library.

    Exit code 3: the features differ by more than rounding.
    """
    from poise.backbones import load_model
    from poise.backbones.check import check_model
    from poise.backbones.load import folder_name

    found = check_model(load_model(folder_name(name), device=device, dtype=dtype, logit_scale=logit_scale))
    for fact, value in found.facts.items():
        typer.echo(f"{fact + ':':28}{value}")
    typer.echo(f"{'difference from the library:':28} texts {found.text:.1e}, images {found.image:.1e}")
    if not found.equal:
        typer.echo(f"The features differ from the library's by more than {found.largest:g}.", err=True)
        raise typer.Exit(DIFFERS)
    typer.echo(f"The features equal the library's (to {found.largest:g}).")


@convert_app.command("model")
def convert(
    file: Annotated[Path, typer.Argument(help="Checkpoint: .pt, .pth, .bin, .ckpt or .safetensors.")],
    architecture: Annotated[
        str,
        typer.Option(help="Its architecture in open_clip, such as ViT-B-32, or an open_clip_config.json."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write, for --model local-dir:FOLDER.")],
    logit_scale: LogitScale = None,
) -> None:
    """Convert a model's checkpoint to a folder with safetensors. No code of the file is run."""
    from poise.backbones.convert import convert_model

    done = convert_model(file, architecture, out, logit_scale=logit_scale)
    removed = f", prefix '{done.prefix}' removed" if done.prefix else ""
    typer.echo(f"{out}: {done.tensors} tensors of {architecture}, with the names of {done.names}{removed}.")
    if done.unused:
        typer.echo(f"Not used, because {architecture} has no such weights: {', '.join(done.unused[:20])}.")
    if "quickgelu" not in architecture.lower():
        typer.echo("Activation as in the architecture; weights trained with QuickGELU need its name with -quickgelu.")
    if done.tokenizer:
        typer.echo(f"The folder needs the tokenizer, too: {done.tokenizer}")
    typer.echo(f"Next: poise models check local-dir:{out}")
