"""`poise embed`: encode images once, and store their features for any labels and methods later."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.input.job_options import SOURCES, DryRun, MetricsPort, Price, engine_of, on_driver
from poise.cli.input.shared_options import (
    Actors,
    Address,
    BatchSize,
    Device,
    Dtype,
    Engine,
    EngineName,
    FixedViews,
    Model,
    Threads,
)
from poise.cli.output.job_output import HowToRun, run_job
from poise.cli.output.verbose import Quiet, Verbose
from poise.defaults import DEFAULT_MODEL
from poise.errors import InvalidOptionError


def embed(
    *,
    images: Annotated[list[str], typer.Argument(help=SOURCES)],
    out: Annotated[str, typer.Option(help="Folder of the features, here or on a remote filesystem.")],
    model: Model = DEFAULT_MODEL,
    views: FixedViews = 1,
    augmix: Annotated[bool, typer.Option(help="Mix the augmented views with AugMix.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the augmented views.")] = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    threads: Threads = None,
    labelled: Annotated[
        bool, typer.Option(help="Sources are datasets (as in `poise bench run --dataset`): store their labels, too.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="With --labelled: folder of the datasets.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue what an earlier attempt began.")] = False,
    dry_run: DryRun = False,
    price: Price = None,
    metrics_port: MetricsPort = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    engine: Engine = EngineName.local,
    address: Address = "",
    actors: Actors = 0,
) -> None:
    """Encode images once; `poise classify FOLDER --labels ...` then answers from their features."""
    from poise.data.opening import open_dataset, open_images
    from poise.data.sources import item_shards
    from poise.data.stored_features import FORMAT, Made
    from poise.inference.option_checks import check_counts
    from poise.jobs.workers import EmbedJob, EmbedWorker
    from poise.views import ViewRecipe

    check_counts(views, batch_size)
    classes: tuple[str, ...] = ()
    if labelled:
        if len(images) != 1:
            raise InvalidOptionError("--labelled takes one dataset.", hint="Embed each into its own folder.")
        found = open_dataset(images[0], data)
        shards, classes = item_shards(images[0], found.items), found.classes
    else:
        shards = open_images(images)
    job = EmbedJob(out, model, device, dtype, batch_size or 0, ViewRecipe(views, seed, augmix))
    how = HowToRun(engine_of(engine, address, actors, device), resume, dry_run, price, metrics_port, quiet, verbose)
    worker = EmbedWorker(job if how.engine.name != "ray" else replace(job, **on_driver(dtype)))
    made = asdict(Made(model, worker.fingerprint, asdict(job.recipe)))
    manifest = {"format": FORMAT, **made, "image": asdict(worker.encoder.image), "classes": classes}
    run_job(job, shards, manifest, how, worker=lambda: worker)
