"""`poise embed`: encode images once, and store their features for any labels and methods later."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.input.job_options import SOURCES, DryRun, MetricsPort, Price, engine_of, on_driver
from poise.cli.input.option_parameters import FIXED_VIEWS, Chosen, takes_options
from poise.cli.input.shared_options import Actors, Address, Engine, EngineName, Threads
from poise.cli.output.job_output import HowToRun, run_job
from poise.cli.output.skipped_files import say_skipped
from poise.cli.output.verbose import Quiet, Verbose
from poise.errors import InvalidOptionError


@takes_options("embed", views={**FIXED_VIEWS, "default": 1}, seed={"min": 0})
def embed(
    *,
    images: Annotated[list[str], typer.Argument(help=SOURCES)],
    out: Annotated[str, typer.Option(help="Folder of the features, here or on a remote filesystem.")],
    options: Chosen,
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

    check_counts(options["views"], options["batch_size"])
    classes: tuple[str, ...] = ()
    if labelled:
        if len(images) != 1:
            raise InvalidOptionError("--labelled takes one dataset.", hint="Embed each into its own folder.")
        found = open_dataset(images[0], data)
        shards, classes = item_shards(images[0], found.items), found.classes
    else:
        shards = open_images(images)
        say_skipped(images, quiet=quiet)
    recipe = ViewRecipe(*(options.pop(name) for name in ("views", "seed", "augmix")))
    job = EmbedJob(out, **{**options, "batch_size": options["batch_size"] or 0}, recipe=recipe)
    engine_here = engine_of(engine, address, actors, job.device)
    how = HowToRun(engine_here, resume, dry_run, price, metrics_port, quiet, verbose)
    worker = EmbedWorker(job if how.engine.name != "ray" else replace(job, **on_driver(job.dtype)))
    made = asdict(Made(job.model, worker.fingerprint, asdict(job.recipe)))
    manifest = {"format": FORMAT, **made, "image": asdict(worker.encoder.image), "classes": classes}
    run_job(job, shards, manifest, how, worker=lambda: worker)
