"""Options of commands that run over shards: `poise classify --out FOLDER/` and `poise embed`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.input.shared_options import unless_given
from poise.errors import InvalidOptionError
from poise.filesystems import folder_of, is_remote

if TYPE_CHECKING:
    from poise.data.sources import Shard
    from poise.data.stored_features import Stored
    from poise.jobs.run import Engine

SOURCES = (
    "Image files, folders or glob patterns; wds:SHARDS.tar, parquet:TABLES, list:FILE or hf:NAME; 'samples' for five "
    "example images."
)
ALL_SOURCES = f"{SOURCES[:-1]}, or the folder of `poise embed`."
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only say what it would take, from a sample of 200 images, and write nothing.")
]
Price = Annotated[float | None, typer.Option(min=0, help="With --dry-run: price of one worker per hour.")]
MetricsPort = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Serve Prometheus metrics of the job on this port of 127.0.0.1.")
]


def is_folder(out: str | None) -> bool:
    """Return whether ``--out`` names a folder of parts: it ends in a slash, or is on a remote filesystem."""
    return out is not None and (out.endswith("/") or is_remote(out))


def engine_of(name: str, address: str, actors: int, device: str) -> Engine:
    """Return where a job runs."""
    from poise.jobs.run import Engine

    if name != "ray":
        return Engine()
    from poise.cluster.connection import is_gpu

    return Engine("ray", address, actors, None if device == "auto" else is_gpu(device))


def on_driver(dtype: str) -> dict[str, Any]:
    """Return the options with which a model is loaded only to be identified: the workers of a cluster compute.

    A model has one fingerprint in all dtypes but bfloat16.
    """
    return {"device": "cpu", "dtype": "bfloat16" if dtype == "bfloat16" else "float32"}


def stored_features(shards: Sequence[Shard]) -> Stored | None:
    """Return what the folder of features among the sources says; None if there is none.

    Raises:
        InvalidOptionError: Features and other images, or features of several folders.
    """
    from poise.data.stored_features import FeatureShard, read_stored

    folders = {folder_of(shard.path) if isinstance(shard, FeatureShard) else None for shard in shards}
    if folders <= {None}:
        return None
    if len(folders) > 1:
        raise InvalidOptionError("Stored features come alone.", hint="Give one folder of features, or images.")
    return read_stored(str(folders.pop()))


def stored_in(folder: Path) -> Stored | None:
    """Return what a folder of features says; None if it is none."""
    from poise.data.stored_features import has_features, read_stored

    return read_stored(str(folder)) if folder.is_dir() and has_features(str(folder)) else None


def with_stored(ctx: typer.Context, options: dict[str, Any], stored: Stored | None) -> dict[str, Any]:
    """Return the options; model and views are those of stored features, unless the user gave others.

    Raises:
        InvalidOptionError: The model would be downloaded, and the user did not name it.
    """
    if stored is None:
        return options
    from poise.backbones.load import is_downloaded
    from poise.cli.input.shared_options import given

    made = stored.made
    if "model" not in given(ctx, options) and is_downloaded(made.model):
        raise InvalidOptionError(
            f"The features were made with the model '{made.model}', which would be downloaded.",
            hint="Name the model yourself if you want that: --model NAME.",
        )
    recipe = {name: made.recipe[name] for name in ("views", "seed", "augmix") if name in made.recipe}
    return unless_given(ctx, options, {"model": made.model, **recipe})
