"""`poise bench`: run the benchmark, and make tables, figures, a page and exports of its records."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.exit_codes import NOTHING_DONE, SOME_FAILED, WRITE_FAILED
from poise.cli.input.option_parameters import Chosen, takes_run_options
from poise.cli.input.shared_options import Actors, Address, Engine, Threads
from poise.cli.output.dry_run import show_plan
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.cli.typer_app import Commands
from poise.defaults import PAPER_VIEWS
from poise.errors import StorageError
from poise.terminal import styled
from poise.text import counted

if TYPE_CHECKING:
    from poise.evaluate.config import RunConfig, Settings
    from poise.report.tables.table import Table

Runs = Annotated[Path, typer.Argument(help="Folder of one run, or folder of several runs.")]
Metrics = Annotated[str, typer.Option(help="Comma-separated metrics (see `poise list metrics`).")]
Format = Annotated[str, typer.Option("--format", help="terminal, md, latex, csv, json or html.")]
Published = Annotated[
    bool, typer.Option(help="Show the papers' numbers too, which are of CLIP ViT-B/16 (always, if that is the model).")
]
OutFile = Annotated[Path | None, typer.Option(help="Write to this file instead of printing.")]

app = Commands(help="Run methods on datasets, and report the results in tables and figures.")


_NOT_CONFIGURED = ("config", "assign", "allow_changes", "dry_run", "quiet", "verbose", "threads")


def _option(text: str, default: str = "") -> Any:
    return typer.Option(help=text, show_default=default or True)


def _like(shared: Any, default: str = "") -> Any:
    """Return the option that other commands share, without its default: a configuration file may set it."""
    return _option(shared.__metadata__[0].help, default)


@app.command("run")
@takes_run_options(views=str(PAPER_VIEWS), template="by dataset")
def run_command(
    *,
    context: typer.Context,
    data: Annotated[str | None, _option("Folder that contains the datasets.", "data")] = None,
    dataset: Annotated[str | None, _option("Comma-separated datasets (see `poise list datasets`).")] = None,
    method: Annotated[
        str | None, _option("Comma-separated methods or groups (see `poise list methods`).", "paper")
    ] = None,
    options: Chosen,
    seeds: Annotated[str | None, _option("Comma-separated seeds.", "1,2,3")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Images per dataset, a fixed stratified subset.", show_default="all")
    ] = None,
    view_engine: Annotated[str | None, _option("How views are made: auto, pil or batched.", "auto")] = None,
    augmix: Annotated[str | None, _option("AugMix: auto (as TPT has it), c-tpt, on or off.", "auto")] = None,
    framework: Annotated[str | None, _option("How images are adapted to (see `poise list frameworks`).", "tpt")] = None,
    temperature: Annotated[str | None, _option("Divide all logits by this number.")] = None,
    calibrate: Annotated[
        int | None, _option("Images per dataset to calibrate each method with; metrics are of the others.", "none")
    ] = None,
    chunk: Annotated[int | None, _option("Images per file of records, the most that a kill loses.", "auto")] = None,
    workers: Annotated[int | None, _option("Threads or processes that read images.", "auto")] = None,
    threads: Threads = None,
    engine: Annotated[str | None, _like(Engine, "local")] = None,
    address: Annotated[str | None, _like(Address)] = None,
    actors: Annotated[int | None, _like(Actors, "0")] = None,
    out: Annotated[str | None, _option("Folder for runs.", "runs")] = None,
    name: Annotated[str | None, _option("Name of the run.", "model and hash")] = None,
    config: Annotated[Path | None, _option("TOML file with a configuration; options override it.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="Set a key, e.g. options.tpt.lr=0.003.")] = None,
    tsne: Annotated[bool | None, _option("Store class text features too, for the t-SNE figure.", "no")] = None,
    deep: Annotated[
        bool | None,
        _option("Resuming: compare the pixels of finished images, not only their files' size and time.", "no"),
    ] = None,
    allow_changes: Annotated[bool, _option("Resume a run of other versions or another device.")] = False,
    dry_run: Annotated[bool, _option("Print the plan and what is missing (exit code 3); run nothing.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run every method on every image, dataset and seed. The same command resumes an interrupted run."""
    flags = {
        {"dataset": "datasets", "method": "methods"}.get(key, key): value
        for key, value in context.params.items()  # with those of ``options``
        if value is not None and key not in _NOT_CONFIGURED
    }
    worst = 0
    for run_config, settings in _configurations(config, flags, assign or []):
        if dry_run:
            worst = max(worst, 0 if show_plan(run_config, settings) else SOME_FAILED)
        else:
            worst = max(worst, _run(run_config, settings, allow_changes, quiet))
    raise typer.Exit(worst)


@app.command("table")
def table_command(
    runs: Runs,
    like: Annotated[
        str | None, typer.Option(help="A table of the paper, table1 ... table5; peers or peers-shifts.")
    ] = None,
    metrics: Metrics = "accuracy,ece,gap",
    intervals: Annotated[bool, typer.Option(help="Print 95 % confidence intervals over images.")] = False,
    std: Annotated[bool, typer.Option(help="Print standard deviations over seeds.")] = False,
    published: Published = False,
    output: Format = "terminal",
    out: OutFile = None,
) -> None:
    """Print results as means over seeds."""
    from poise.report.tables.results import result_tables

    tables = result_tables(
        runs, like=like, metrics=_names(metrics), intervals=intervals, std=std, published_too=published
    )
    _print(tables, output, out)


@app.command("compare")
def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs; of several, the first is the baseline.")],
    method: Annotated[str, typer.Option(help="Method of interest.")] = "kld+cats",
    against: Annotated[str, typer.Option(help="Comma-separated methods to compare it with.")] = "zero-shot,tpt",
    metrics: Metrics = "accuracy,ece",
    baseline: Annotated[
        str, typer.Option(help="Compare settings instead of methods, each with this run or setting (dtype=float32).")
    ] = "",
    output: Format = "terminal",
    out: OutFile = None,
) -> None:
    """Print paired differences between methods, or between runs, with confidence intervals."""
    from poise.methods import canonical, expand
    from poise.report.tables.compare import comparison

    table = comparison(runs, canonical(method), expand(against), _names(metrics), baseline=baseline)
    _print([table], output, out)


@app.command("analyse")
def analyse_command(runs: Runs, output: Format = "terminal", out: OutFile = None) -> None:
    """Print confidence, entropy change and other analyses of each method, and the ablation."""
    from poise.report.records.runs import load
    from poise.report.tables.analyses import analysis_tables

    _print(analysis_tables(load(runs)), output, out)


@app.command("unknown")
def unknown_command(runs: Runs, output: Format = "terminal", out: OutFile = None) -> None:
    """Print how well scores find images of classes that the labels leave out (`bench run --set unknown=0.5`)."""
    from poise.report.tables.unknown import unknown_table

    _print([unknown_table(runs)], output, out)


@app.command("figures")
def figures_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the PNG and SVG files.")] = Path("figures"),
    kinds: Annotated[
        str, typer.Option(help="Comma-separated figures (see `poise list figures`).", show_default="all")
    ] = "",
) -> None:
    """Draw the paper's figures and two overviews."""
    from poise.report.figures.write import write_figures

    drawn = write_figures(runs, out, only=_names(kinds) or None, say=remark)
    for note in drawn.notes:
        remark(note)
    for file in drawn.files:
        typer.echo(str(file))


@app.command("page")
def page_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="HTML file.")] = Path("benchmark.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "Calibration benchmark",
    published: Published = False,
) -> None:
    """Write one self-contained HTML page with all tables and figures."""
    from poise.report.page.build import write_page

    typer.echo(str(write_page(runs, out, title=title, published_too=published, say=remark)))


@app.command("export")
def export_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("export"),
    names: Annotated[bool, typer.Option(help="Write class names instead of label numbers in the CSV.")] = False,
) -> None:
    """Write CSV files (true_label, pred_label, confidence) and JSON files for CLIP_benchmark."""
    from poise.report.exports import export

    for file in export(runs, out, names=names):
        typer.echo(str(file))


@app.command("resume-info")
def resume_info(runs: Runs) -> None:
    """Show each run's progress and the command that resumes it."""
    from poise.evaluate.storage.run_folder import run_folders, status

    folders = run_folders(runs)
    if not folders:
        typer.echo(f"No run in '{runs}'.", err=True)
        raise typer.Exit(NOTHING_DONE)
    for folder in folders:
        run = status(folder)
        chunks, images, errors = (
            counted(number, noun)
            for number, noun in ((run.units, "chunk"), (run.images, "image"), (run.errors, "error"))
        )
        typer.echo(f"{run.run}: {run.finished} of {chunks}, {images}, {errors}")
        if run.damaged:
            typer.echo(f"  damaged, to be computed again: {', '.join(run.damaged)}")
        if run.finished < run.units and run.command:
            typer.echo(f"  resume with: {shlex.join(run.command)}")


def _names(text: str) -> list[str]:
    """Split comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(tables: list[Table], output: str, out: Path | None) -> None:
    """Print the tables in the chosen format, or write them to a file."""
    from poise.files import write_atomic
    from poise.report.tables.formats import render

    colour = out is None and sys.stdout.isatty()
    text = render(tables, output, colour=colour)
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"), file=styled(sys.stdout) if colour else None)
    else:
        write_atomic(out, text.encode())
        typer.echo(str(out))


def _configurations(
    path: Path | None, flags: dict[str, Any], assignments: list[str]
) -> list[tuple[RunConfig, Settings]]:
    """Apply the file, then the flags, then the assignments to the defaults."""
    from poise.evaluate.config import build, override, read

    runs = read(path) if path else [{}]
    if len(runs) > 1 and "name" in flags:
        prefix = flags.pop("name")
        runs = [{**values, "name": f"{prefix}-{values.get('name', index)}"} for index, values in enumerate(runs)]
    return [build(override({**values, **flags}, assignments)) for values in runs]


def _run(config: RunConfig, settings: Settings, allow_changes: bool, quiet: bool) -> int:
    """Do one run, print its summary and return the exit code."""
    from poise.errors import RunInterruptedError
    from poise.evaluate.interrupt import interruptible
    from poise.evaluate.run import run

    command, began = ["poise", *sys.argv[1:]], time.perf_counter()
    try:
        with interruptible() as check:
            summary = run(
                config,
                settings,
                check=check,
                allow_changes=allow_changes,
                command=command,
                warn=lambda text: remark(f"warning: {text}"),
                quiet=quiet,
            )
    except RunInterruptedError as stop:
        typer.echo(f"\npoise: {stop}; finished chunks are kept. Resume with:\n  {shlex.join(command)}", err=True)
        raise typer.Exit(stop.exit_code) from None
    except StorageError as problem:
        typer.echo(f"poise: {problem}\nResume with:\n  {shlex.join(command)}", err=True)
        raise typer.Exit(WRITE_FAILED) from None
    seconds = time.perf_counter() - began
    if summary.damaged:
        remark(f"damaged files were computed again: {', '.join(summary.damaged)}", quiet=quiet)
    if summary.errors:
        remark(f"{counted(summary.errors, 'image')} could not be read; the records say why.", quiet=quiet)
    if summary.fallbacks:
        remark(f"{counted(summary.fallbacks, 'answer')} without tuning, which was not finite.")
    counts = {
        "image": summary.images // summary.seeds,
        "method": summary.methods,
        "seed": summary.seeds,
        "failure": summary.errors,
    }
    typer.echo(
        f"{summary.folder}: {', '.join(counted(number, noun) for noun, number in counts.items())}; "
        f"{summary.computed} of {counted(summary.units, 'chunk')} new, in {seconds:.1f} s"
    )
    typer.echo(f"Next: {shlex.join(['poise', 'bench', 'table', str(summary.folder)])}")
    return 0 if not summary.errors else NOTHING_DONE if summary.errors == summary.images else SOME_FAILED
