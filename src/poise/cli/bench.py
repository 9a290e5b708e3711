"""`poise bench`: run the benchmark, and turn its records into tables, figures, a page and exports."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.exit_codes import NOTHING_DONE, SOME_FAILED, WRITE_FAILED
from poise.errors import StorageError

if TYPE_CHECKING:
    from poise.evaluate.config import RunConfig, Settings
    from poise.evaluate.run import RunSummary
    from poise.report.table import Table

Runs = Annotated[Path, typer.Argument(help="A run's folder, or a folder of runs.")]
Metrics = Annotated[str, typer.Option(help="Names of `poise list metrics`, comma-separated.")]
Format = Annotated[str, typer.Option("--format", help="terminal, md, latex, csv, json or html.")]
OutFile = Annotated[Path | None, typer.Option(help="Write to this file instead of printing.")]

app = typer.Typer(no_args_is_help=True, help="Benchmark methods on datasets; resume, tabulate and draw the results.")


@app.command("run")
def run_command(
    data: Annotated[str | None, typer.Option(help="Folder that holds the datasets.", show_default="data")] = None,
    dataset: Annotated[str | None, typer.Option(help="Comma-separated; `poise list datasets` shows them.")] = None,
    method: Annotated[str | None, typer.Option(help="Comma-separated names, or all.", show_default="all")] = None,
    model: Annotated[str | None, typer.Option(help="`poise list models` shows them.", show_default="pocket")] = None,
    seeds: Annotated[str | None, typer.Option(help="Comma-separated seeds.", show_default="1,2,3")] = None,
    limit: Annotated[int | None, typer.Option(help="Images per dataset, a fixed, stratified subset; 0 = all.")] = None,
    views: Annotated[int | None, typer.Option(help="Per image, the plain one included.", show_default="64")] = None,
    view_engine: Annotated[str | None, typer.Option(help="auto, pil or batched.", show_default="auto")] = None,
    augmix: Annotated[str | None, typer.Option(help="auto (TPT), c-tpt, on or off.", show_default="auto")] = None,
    framework: Annotated[str | None, typer.Option(help="See `poise list frameworks`.", show_default="tpt")] = None,
    init: Annotated[
        str | None, typer.Option(help="Where tuning starts: template, fpp, or a prompt file.", show_default="template")
    ] = None,
    template: Annotated[str | None, typer.Option(help="Prompt with {} for the label.", show_default="own")] = None,
    temperature: Annotated[
        str | None, typer.Option(help="Divides all logits: a number, or the file of `poise fit temperature`.")
    ] = None,
    batch_size: Annotated[str | None, typer.Option(help="Images at a time, or auto.", show_default="auto")] = None,
    chunk: Annotated[int | None, typer.Option(help="Images per file of records.", show_default="128")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1, ...", show_default="auto")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float16, ...", show_default="auto")] = None,
    workers: Annotated[int | None, typer.Option(help="Images that are read at a time.", show_default="auto")] = None,
    engine: Annotated[str | None, typer.Option(help="Where to run: local or ray.", show_default="local")] = None,
    address: Annotated[str | None, typer.Option(help="Ray address: auto, or host:port.")] = None,
    actors: Annotated[int | None, typer.Option(help="Ray processes.", show_default="one per GPU, or 4 CPUs")] = None,
    out: Annotated[str | None, typer.Option(help="Folder of runs.", show_default="runs")] = None,
    name: Annotated[str | None, typer.Option(help="The run's name.", show_default="model and hash")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; flags change what it says.")] = None,
    assign: Annotated[list[str] | None, typer.Option("--set", help="key=value, e.g. options.kld+cats.lr=0.003")] = None,
    allow_changes: Annotated[bool, typer.Option(help="Resume a run of other versions or another device.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Show what would be run, and check its names.")] = False,
) -> None:
    """Run every method on every image, dataset and seed. The same command resumes what was interrupted."""
    given = {
        "data": data, "datasets": dataset, "methods": method, "model": model, "seeds": seeds, "limit": limit,
        "views": views, "view_engine": view_engine, "augmix": augmix, "framework": framework, "init": init,
        "template": template, "temperature": temperature, "batch_size": batch_size, "chunk": chunk,
        "device": device, "dtype": dtype, "workers": workers, "engine": engine, "address": address, "actors": actors,
        "out": out, "name": name,
    }  # fmt: skip
    flags = {key: value for key, value in given.items() if value is not None}
    worst = 0
    for run_config, settings in _configurations(config, flags, assign or []):
        if dry_run:
            _show(run_config)
        else:
            worst = max(worst, _run(run_config, settings, allow_changes))
    raise typer.Exit(worst)


@app.command("table")
def table_command(
    runs: Runs,
    like: Annotated[str | None, typer.Option(help="A table of the paper: table1 ... table5.")] = None,
    metrics: Metrics = "accuracy,ece",
    intervals: Annotated[bool, typer.Option(help="Print 95 % bootstrap confidence intervals over images.")] = False,
    std: Annotated[bool, typer.Option(help="Print standard deviations over seeds.")] = False,
    output: Format = "terminal",
    out: OutFile = None,
) -> None:
    """Print results, mean over seeds, beside the published ones where there are any."""
    from poise.report.tables import result_tables

    _print(result_tables(runs, like=like, metrics=_names(metrics), intervals=intervals, std=std), output, out)


@app.command("compare")
def compare_command(
    runs: Runs,
    method: Annotated[str, typer.Option(help="The method in question.")] = "kld+cats",
    against: Annotated[str, typer.Option(help="The other methods, comma-separated.")] = "zero-shot,tpt",
    metrics: Metrics = "accuracy,ece",
    baseline: Annotated[
        str, typer.Option(help="Compare settings instead, each with this one: a run's name, or dtype=float32.")
    ] = "",
    output: Format = "terminal",
    out: OutFile = None,
) -> None:
    """Print paired differences between methods, or between settings, with confidence intervals."""
    from poise.report.compare import comparison

    _print([comparison(runs, method, _names(against), _names(metrics), baseline=baseline)], output, out)


@app.command("analyse")
def analyse_command(runs: Runs, output: Format = "terminal", out: OutFile = None) -> None:
    """Print how predictions change under each method."""
    from poise.report.analyses import analysis_tables
    from poise.report.runs import load

    _print(analysis_tables(load(runs)), output, out)


@app.command("figures")
def figures_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the PNG and SVG files.")] = Path("figures"),
    kinds: Annotated[str, typer.Option(help="Names of `poise list figures`, comma-separated; all by default.")] = "",
) -> None:
    """Draw the paper's figures from the records."""
    from poise.report.figures import write_figures

    drawn = write_figures(runs, out, only=_names(kinds) or None)
    for note in drawn.notes:
        typer.echo(f"poise: {note}", err=True)
    for file in drawn.files:
        typer.echo(str(file))


@app.command("page")
def page_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="The HTML file.")] = Path("benchmark.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Calibration benchmark",
) -> None:
    """Write one self-contained HTML page with all tables and figures."""
    from poise.report.page import write_page

    typer.echo(str(write_page(runs, out, title=title)))


@app.command("export")
def export_command(
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("export"),
    names: Annotated[bool, typer.Option(help="Class names instead of label numbers in the CSV.")] = False,
) -> None:
    """Write CSV (true_label, pred_label, confidence) and the JSON that CLIP_benchmark's build reads."""
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
        found = status(folder)
        typer.echo(
            f"{found.run}: {found.finished} of {found.units} chunks, {found.images} images, {found.errors} errors"
        )
        if found.damaged:
            typer.echo(f"  damaged, to be computed again: {', '.join(found.damaged)}")
        if found.finished < found.units and found.command:
            typer.echo(f"  resume with: {shlex.join(found.command)}")


def _names(text: str) -> list[str]:
    """Comma-separated names."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(tables: list[Table], output: str, out: Path | None) -> None:
    """The tables in the chosen format, to the terminal or into a file."""
    from poise.report.formats import render
    from poise.storage import write_atomic

    text = render(tables, output, colour=out is None and sys.stdout.isatty())
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        write_atomic(out, text.encode())
        typer.echo(str(out))


def _configurations(
    path: Path | None, flags: dict[str, Any], assignments: list[str]
) -> list[tuple[RunConfig, Settings]]:
    """Defaults, then the file, then the flags, then the assignments."""
    from poise.evaluate.config import build, override, read

    runs = read(path) if path else [{}]
    if len(runs) > 1 and "name" in flags:
        flags = dict(flags)
        prefix = flags.pop("name")
        runs = [{**values, "name": f"{prefix}-{values.get('name', index)}"} for index, values in enumerate(runs)]
    return [build(override({**values, **flags}, assignments)) for values in runs]


def _run(config: RunConfig, settings: Settings, allow_changes: bool) -> int:
    """One run: its summary on stderr, its exit code as the answer."""
    from poise.errors import RunInterruptedError
    from poise.evaluate.interrupt import interruptible
    from poise.evaluate.run import run

    command = ["poise", *sys.argv[1:]]
    try:
        with interruptible() as check:
            summary = run(config, settings, check=check, allow_changes=allow_changes, command=command, warn=_warn)
    except RunInterruptedError as stop:
        typer.echo(f"\npoise: {stop}; what is finished is kept. Resume with:\n  {shlex.join(command)}", err=True)
        raise typer.Exit(stop.exit_code) from None
    except StorageError as problem:
        typer.echo(f"poise: {problem}\nResume with:\n  {shlex.join(command)}", err=True)
        raise typer.Exit(WRITE_FAILED) from None
    _report(summary)
    if summary.errors == summary.images:
        return NOTHING_DONE
    return SOME_FAILED if summary.errors else 0


def _warn(text: str) -> None:
    typer.echo(f"poise: warning: {text}", err=True)


def _report(summary: RunSummary) -> None:
    if summary.damaged:
        typer.echo(f"poise: damaged files were computed again: {', '.join(summary.damaged)}", err=True)
    if summary.errors:
        typer.echo(f"poise: {summary.errors} images could not be read; their rows say why.", err=True)
    if summary.fallbacks:
        typer.echo(f"poise: {summary.fallbacks} answers are un-tuned, as tuning was not finite.", err=True)
    typer.echo(f"{summary.folder}: {summary.images} images x seeds, {summary.computed} of {summary.units} chunks new")


def _show(config: RunConfig) -> None:
    """What a run would be; names are looked up, data and weights are not touched."""
    from poise.data import catalog
    from poise.data.opening import SCHEMES
    from poise.errors import ModelNotFoundError
    from poise.evaluate.resolve import check_init, make_methods, resolve

    resolved = resolve(config)
    for name in resolved.datasets:
        if name.partition(":")[0] not in SCHEMES:
            catalog.row(name)
    typer.echo(f"{config.run_id}  {config.title}".rstrip())
    for key, value in resolved.hashed().items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        typer.echo(f"  {key} = {shown}")
    for method in make_methods(resolved):
        typer.echo(f"  {method.name}: {method.describe()}")
    try:
        check_init(resolved)
    except ModelNotFoundError as problem:  # it may be fitted later; a run that begins without it is refused
        typer.echo(f"  not there yet: {problem}")
