"""`poise reproduce`: run a published table again, record it, and verify, sign, show and export such records."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from poise.cli.exit_codes import SOME_FAILED
from poise.cli.input.shared_options import Device, Dtype, Model, Threads
from poise.cli.output.verbose import Quiet, Verbose, remark
from poise.cli.typer_app import Commands

if TYPE_CHECKING:
    from poise.evaluate.config import RunConfig, Settings
    from poise.evaluate.run import RunSummary

TABLES = {
    "table1": "Table 1 of the paper: fine-grained classification.",
    "table2": "Table 2 of the paper: prompts fitted by CoOp and MaPLe (--init).",
    "table3": "Table 3 of the paper: the DynaPrompt framework.",
    "table4": "Table 4 of the paper: natural distribution shifts.",
    "table5": "Table 5 of the paper: the ablation.",
    "peers": "Methods of other papers, on eleven datasets.",
    "peers-shifts": "Methods of other papers, on natural distribution shifts.",
}
app = Commands(help="Run a published table again, and record, verify, sign and show the result.")


def _like(shared: Any, default: str) -> Any:
    """Return the option that other commands share, with another default."""
    return typer.Option(help=shared.__metadata__[0].help, show_default=default)


Data = Annotated[str, typer.Option(help="Folder that contains the datasets.")]
Record = Annotated[Path, typer.Argument(help="A record that `poise reproduce` wrote.")]
Signed = Annotated[Path, typer.Argument(help="A record, or an attestation of `poise reproduce verify --out`.")]
Prompts = Annotated[list[str] | None, typer.Option("--init", help="A fitted prompt, as KIND:FILE.")]


def _table(
    context: typer.Context,
    data: Data = "data",
    out: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs"),
    model: Annotated[str | None, _like(Model, "that of the table")] = None,
    dataset: Annotated[str, typer.Option(help="Comma-separated datasets.", show_default="all of the table")] = "",
    init: Prompts = None,
    quick: Annotated[bool, typer.Option(help="Take 200 images of each dataset.")] = False,
    gate: Annotated[bool, typer.Option(help="Stop unless zero-shot is as published; compare only then.")] = True,
    partial: Annotated[bool, typer.Option(help="Accept datasets with fewer images than published.")] = False,
    time: Annotated[bool, typer.Option(help="Say how long it takes, by timing a few images.")] = True,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    _reproduce(str(context.info_name), context, quiet)


def _reproduce(table: str, context: typer.Context, quiet: bool) -> None:
    from poise.evaluate.interrupt import interruptible
    from poise.evaluate.run import run
    from poise.reproduce.comparison import table as comparison_table
    from poise.reproduce.gate import GateError
    from poise.reproduce.plans import plan
    from poise.reproduce.reproduce import reproduce

    given = context.params
    changes = {key: given[key] for key in ("data", "model", "device", "dtype")}
    changes |= {"out": str(given["out"]), "init": _prompts(given["init"])}
    changes |= {"datasets": [name.strip() for name in given["dataset"].split(",") if name.strip()]}
    command = ["poise", *sys.argv[1:]]
    with interruptible() as check:

        def one(config: RunConfig, settings: Settings) -> RunSummary:
            return run(config, settings, check=check, command=command, warn=remark, quiet=quiet)

        try:
            done = reproduce(
                plan(table, changes, quick=given["quick"]),
                one,
                gate=given["gate"],
                partial=given["partial"],
                time=given["time"],
                say=lambda text: remark(text, quiet=quiet),
            )
        except GateError as stop:
            for line in stop.lines:
                remark(line)
            raise typer.Exit(SOME_FAILED) from None
    if done.compared:
        from poise.cli.commands.listing import show

        show(comparison_table(done.compared, f"{table}: measured here, and as published"))
    typer.echo(str(done.file))


def _prompts(texts: list[str] | None) -> dict[str, str]:
    """Return the files of fitted prompts by kind."""
    from poise.errors import InvalidOptionError

    pairs = [text.partition(":") for text in texts or ()]
    for kind, _, file in pairs:
        if not file:
            raise InvalidOptionError(f"--init is '{kind}'.", hint="Write KIND:FILE, such as coop:prompt.safetensors.")
    return {kind: file for kind, _, file in pairs}


for _name, _about in TABLES.items():
    app.command(_name, help=f"{_about} Runs it, and compares each number with the published one.")(_table)


@app.command("run")
def run_command(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="TOML file of runs, as `poise bench run --config` reads it.")],
    data: Data = "data",
    out: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs"),
    model: Annotated[str | None, _like(Model, "that of the file")] = None,
    dataset: Annotated[str, typer.Option(help="Comma-separated datasets.", show_default="all of the file")] = "",
    init: Prompts = None,
    quick: Annotated[bool, typer.Option(help="Take 200 images of each dataset.")] = False,
    time: Annotated[bool, typer.Option(help="Say how long it takes, by timing a few images.")] = True,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Run a configuration of your own and record it; nothing is published for it."""
    context.params |= {"gate": False, "partial": True}
    _reproduce(str(config), context, quiet)


@app.command("verify")
def verify_command(
    record: Record,
    data: Data = "data",
    sample: Annotated[int, typer.Option(help="Images to compute again.")] = 200,
    records: Annotated[Path | None, typer.Option(help="Folder of the runs: also compute all numbers again.")] = None,
    model: Annotated[str | None, _like(Model, "that of the record")] = None,
    init: Prompts = None,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Write an attestation to this file, for the board.")] = None,
    threads: Threads = None,
) -> None:
    """Compute a sample of a record's answers again. The exit code is 3 if they are not the same."""
    from poise.files import write_atomic
    from poise.reproduce.answers import canonical
    from poise.reproduce.record import read
    from poise.reproduce.verify import Here, summary, verify

    found = verify(read(record), Here(data, model or "", device, _prompts(init)), sample=sample, runs=records)
    for problem in found.problems:
        remark(problem)
    typer.echo(summary(found))
    if out is not None:
        write_atomic(out, canonical(found.attestation()) + b"\n")
    if not found.verified:
        raise typer.Exit(SOME_FAILED)


@app.command("sign")
def sign_command(
    record: Signed,
    key: Annotated[Path, typer.Option(help="A private key of OpenSSH.")] = Path("~/.ssh/id_ed25519"),
) -> None:
    """Sign a record or an attestation with a key of OpenSSH; the signature is written beside it."""
    from poise.reproduce.signature import sign
    from poise.reproduce.verify import read_file

    out = record.with_name(f"{record.name}.sig")
    sign(read_file(record), key.expanduser(), out)
    typer.echo(str(out))


@app.command("check")
def check_command(
    record: Signed,
    signature: Annotated[Path | None, typer.Option(help="The signature.", show_default="RECORD.sig")] = None,
    signers: Annotated[Path | None, typer.Option(help="Allowed signers, in OpenSSH's format.")] = None,
) -> None:
    """Check that a record or an attestation is whole, and who signed it."""
    from poise.reproduce.signature import check
    from poise.reproduce.verify import read_file

    content = read_file(record)
    file = signature or record.with_name(f"{record.name}.sig")
    typer.echo(f"whole, sha256 {content['sha256']}")
    if signature is not None or signers is not None or file.is_file():
        typer.echo(f"signed by {check(content, file, signers)}")


@app.command("board")
def board_command(
    folder: Annotated[Path, typer.Argument(help="Folder of records and attestations.")],
    out: Annotated[Path, typer.Option(help="HTML file.")] = Path("board.html"),
) -> None:
    """Write a folder of records as one static HTML page."""
    from poise.reproduce.board import write

    typer.echo(str(write(folder, out)))


@app.command("export")
def export_command(
    record: Record,
    out: Annotated[Path, typer.Option(help="Folder for the files, such as a clone of the model.")] = Path("export"),
    hub: Annotated[list[str] | None, typer.Option(help="Id of a dataset on the hub, as DATASET=ID.")] = None,
    date: Annotated[str, typer.Option(help="When it was measured, as ISO-8601.")] = "",
    url: Annotated[str, typer.Option(help="Where the record can be read.")] = "",
) -> None:
    """Write the hub's evaluation results (.eval_results) and a section of a model card."""
    from poise.errors import InvalidOptionError
    from poise.reproduce.exports import export
    from poise.reproduce.record import read

    pairs = [text.rpartition("=") for text in hub or ()]
    for dataset, _, name in pairs:
        if not dataset or not name:
            raise InvalidOptionError(f"--hub is '{name}'.", hint="Write DATASET=ID, such as eurosat=org/eurosat.")
    ids = {dataset: name for dataset, _, name in pairs}
    for file in export(read(record), record.stem.removesuffix(".record"), out, ids, date=date, url=url):
        typer.echo(str(file))
