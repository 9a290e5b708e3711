"""The command `poise`: its sub-commands, and the message and exit code of each error."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from poise import __version__
from poise.cli.commands.bench import app as bench_app
from poise.cli.commands.calibrate import calibrate
from poise.cli.commands.calibrate_apply import calibrate_apply
from poise.cli.commands.calibrate_plan import calibrate_plan
from poise.cli.commands.classify import classify
from poise.cli.commands.collect import collect
from poise.cli.commands.data import app as data_app
from poise.cli.commands.demo import demo
from poise.cli.commands.embed import embed
from poise.cli.commands.evaluate import evaluate
from poise.cli.commands.export import app as export_app
from poise.cli.commands.fit import app as fit_app
from poise.cli.commands.fit import convert_app
from poise.cli.commands.listing import list_names
from poise.cli.commands.models import app as models_app
from poise.cli.commands.monitor import monitor
from poise.cli.commands.reproduce import app as reproduce_app
from poise.cli.commands.serve import serve
from poise.cli.exit_codes import USAGE, WRITE_FAILED
from poise.cli.output.verbose import remark
from poise.cli.typer_app import Commands
from poise.errors import PoiseError, StorageError, reason_of
from poise.plugins import IMPORT
from poise.terminal import guard
from poise.threads import set_threads

app = Commands(
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "POISE"},
)
app.command("classify")(classify)
app.command("calibrate")(calibrate)
app.command("calibrate plan", context_settings={"auto_envvar_prefix": "POISE_CALIBRATE_PLAN"})(calibrate_plan)
app.command("calibrate apply", context_settings={"auto_envvar_prefix": "POISE_CALIBRATE_APPLY"})(calibrate_apply)
app.command("evaluate")(evaluate)
app.command("monitor")(monitor)
app.command("embed")(embed)
app.command("collect")(collect)
app.command("serve")(serve)
app.command("demo")(demo)
app.command("list")(list_names)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")
app.add_typer(export_app, name="export")
app.add_typer(fit_app, name="fit")
app.add_typer(convert_app, name="convert")
app.add_typer(models_app, name="models")
app.add_typer(reproduce_app, name="reproduce")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"poise {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
            allow_from_autoenv=False,
            show_envvar=False,
        ),  # POISE_VERSION may be a version, as in containers
    ] = False,
    imported: Annotated[
        str,
        typer.Option(
            "--import",
            metavar="FILE_OR_MODULE",
            envvar=IMPORT,
            allow_from_autoenv=False,
            help="Import a Python file or module that registers methods, metrics, datasets, models and so on; "
            f"several are separated by '{os.pathsep}'. Packages with the entry point `poise.plugins` need no option.",
        ),
    ] = "",
) -> None:
    """Trustworthy confidence for CLIP-like vision-language models."""
    if imported:
        os.environ[IMPORT] = imported  # for the processes that this one starts, too
    set_threads()  # before torch is imported; --threads of a command comes later


def main() -> None:
    """Run the command; an expected error prints one message and no traceback."""
    guard()
    try:
        app()
    except PoiseError as error:
        remark(str(error))
        sys.exit(WRITE_FAILED if isinstance(error, StorageError) else USAGE)
    except OSError as error:  # failed reads are PoiseErrors; the others are nearly always failed writes
        if "temporary directory" in str(error):  # of `tempfile`, which some packages use when they are imported
            remark("No folder for temporary files can be written to. Make /tmp writable, or name a folder in TMPDIR.")
            sys.exit(WRITE_FAILED)
        where = f"'{error.filename}'" if error.filename else "the output"
        remark(f"Can't use {where}: {reason_of(error)}.")
        sys.exit(WRITE_FAILED)
