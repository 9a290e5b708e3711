"""Nothing that is printed controls the terminal, whoever prints it and whatever name is in it."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console
from rich.text import Text

from poise import terminal
from poise.cli.app import main
from poise.cli.output import result_rows
from poise.cli.output.verbose import remark
from poise.progress import progress_bar
from poise.report.tables import formats
from poise.report.tables.table import Line, Table
from poise.results import Result
from tests.evaluate.attempt import make_images
from tests.report import made

HOSTILE = "x\x1b[31m\x9b2J\x07\r\u202eevil\x7f"
TINY = ["--model", "tiny", "--views", "2", "--device", "cpu"]


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Streams:
    """The streams of a process, in memory; as a terminal if asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, tty: bool = False, encoding: str = "utf-8") -> None:
        self.bytes: dict[str, io.BytesIO] = {}
        for name in ("stdout", "stderr"):
            self.bytes[name] = _Terminal() if tty else io.BytesIO()
            monkeypatch.setattr(sys, name, io.TextIOWrapper(self.bytes[name], encoding=encoding))

    def text(self) -> str:
        for name in ("stdout", "stderr"):
            getattr(sys, name).flush()
        return "".join(content.getvalue().decode("utf-8") for content in self.bytes.values())


def printed(monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int | None = None) -> str:
    """Return all that the command prints."""
    streams = Streams(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["poise", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    text = streams.text()
    assert status is None or end.value.code == status, text
    return text


def check(text: str) -> None:
    assert "evil" in text, text
    found = [character for character in text if character not in "\n\t" and not character.isprintable()]
    assert not found, (found, text)


def one(folder: Path) -> str:
    return str(make_images(folder / "images", classes=1, each=1))


# Each names something that does not exist by a hostile name; FOLDER has an image, HOSTILE is replaced.
NAMES = {
    "images": ["classify", "FOLDER/HOSTILE", "--labels", "a,b", *TINY],
    "images of a folder": ["classify", "FOLDER/empty HOSTILE", "--labels", "a,b", *TINY],
    "model": ["classify", "FOLDER", "--labels", "a,b", "--model", "HOSTILE"],
    "model folder": ["classify", "FOLDER", "--labels", "a,b", "--model", "local-dir:HOSTILE"],
    "model of transformers": ["classify", "FOLDER", "--labels", "a,b", "--model", "transformers:/HOSTILE"],
    "model file": ["classify", "FOLDER", "--model", "onnx:HOSTILE"],
    "method": ["classify", "FOLDER", "--labels", "a,b", "--method", "HOSTILE"],
    "posthoc": ["classify", "FOLDER", "--labels", "a,b", "--method", "zero-shot|HOSTILE"],
    "template": ["classify", "FOLDER", "--labels", "a,b", "--template", "HOSTILE", *TINY],
    "init": ["classify", "FOLDER", "--labels", "a,b", "--init", "HOSTILE", *TINY],
    "labels file": ["classify", "FOLDER", "--labels-file", "HOSTILE", *TINY],
    "labels": ["classify", "FOLDER", "--labels", "HOSTILE,HOSTILE", *TINY],
    "calibration": ["classify", "FOLDER", "--calibration", "HOSTILE"],
    "device": ["classify", "FOLDER", "--labels", "a,b", "--model", "tiny", "--device", "HOSTILE"],
    "option": ["classify", "FOLDER", "--HOSTILE"],
    "choice": ["classify", "FOLDER", "--format", "HOSTILE"],
    "views": ["classify", "FOLDER", "--views", "HOSTILE"],
    "command": ["HOSTILE"],
    "extra argument": ["list", "models", "HOSTILE"],
    "kind": ["list", "HOSTILE"],
    "filter": ["list", "models", "--filter", "HOSTILE"],
    "dataset": ["bench", "run", "--dataset", "HOSTILE", *TINY],
    "dataset folder": ["bench", "run", "--dataset", "folder:HOSTILE", *TINY],
    "shards": ["bench", "run", "--dataset", "wds:HOSTILE", *TINY],
    "config": ["bench", "run", "--config", "HOSTILE"],
    "key": ["bench", "run", "--set", "HOSTILE=1"],
    "framework": ["bench", "run", "--dataset", "folder:FOLDER", "--set", "framework=HOSTILE", *TINY],
    "engine": ["bench", "run", "--dataset", "folder:FOLDER", "--set", "engine=HOSTILE", "--dry-run", *TINY],
    "runs": ["bench", "table", "HOSTILE"],
    "no runs": ["bench", "resume-info", "HOSTILE"],
    "metric": ["bench", "table", "RUNS", "--metrics", "HOSTILE"],
    "layout": ["bench", "table", "RUNS", "--like", "HOSTILE"],
    "table format": ["bench", "table", "RUNS", "--format", "HOSTILE"],
    "figure": ["bench", "figures", "RUNS", "--kinds", "HOSTILE", "--out", "FOLDER/figures"],
    "token file": ["serve", "--token-file", "HOSTILE"],
    "host": ["serve", "--host", "HOSTILE"],
    "labelled images": ["calibrate", "HOSTILE", "--out", "FOLDER/c.json"],
    "levels": ["calibrate", "FOLDER", "--out", "FOLDER/c.json", "--coverage", "HOSTILE"],
    "prompt file": ["convert", "coop", "HOSTILE", "FOLDER/out", "--model", "tiny"],
    "output folder": ["classify", "FOLDER", "--labels", "a,b", "--out", "FOLDER/class0/0.png/HOSTILE", *TINY],
}


@pytest.mark.parametrize("name", NAMES)
def test_names_in_errors(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = one(tmp_path)
    (tmp_path / "images" / f"empty {HOSTILE}").mkdir()
    made.write_run(tmp_path / "runs", datasets=("pets",), methods=("tpt",))
    places = {"FOLDER": folder, "RUNS": str(tmp_path / "runs"), "HOSTILE": HOSTILE}
    arguments = NAMES[name]
    for mark, place in places.items():
        arguments = [argument.replace(mark, place) for argument in arguments]
    text = printed(monkeypatch, *arguments)
    check(text)
    assert "Traceback" not in text


@pytest.mark.parametrize("format", ["table", "json", "jsonl", "csv"])
def test_labels_and_names_in_results(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(tmp_path / f"{HOSTILE}", classes=1, each=1)
    (images / "class0" / "0.png").rename(images / f"{HOSTILE}.png")
    (images / f"{HOSTILE} broken.png").write_bytes(b"no image")
    arguments = ["classify", str(images), "--labels", f"{HOSTILE},cat", "--format", format, "--method", "zero-shot"]
    text = printed(monkeypatch, *arguments, *TINY, status=3)
    check(text)
    if format == "json":
        rows = json.loads(text[: text.rindex("]") + 1])
        assert any(HOSTILE in (row["probabilities"] or ()) for row in rows)


def test_a_run_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(tmp_path / HOSTILE, classes=2, each=1)
    bench = ["bench", "run", "--dataset", f"folder:{images}", *TINY, "--method", "zero-shot", "--seeds", "1"]
    check(printed(monkeypatch, *bench, "--out", str(tmp_path / f"runs{HOSTILE}")))
    check(printed(monkeypatch, *bench, "--dry-run"))
    for ledger in tmp_path.glob("runs*/*/ledger.jsonl"):
        ledger.write_text(json.dumps({"event": "start", "command": ["poise", HOSTILE]}) + "\n", encoding="utf-8")
    check(printed(monkeypatch, "bench", "resume-info", str(tmp_path / f"runs{HOSTILE}")))


def test_names_can_t_begin_a_line_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    text = printed(monkeypatch, "list", "models\npoise: all is well", status=2)
    assert text.startswith("poise: Unknown kind 'models\\npoise: all is well'")


def test_whoever_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    terminal.guard()
    terminal.guard()  # once is enough
    sys.stdout.write(HOSTILE)
    sys.stderr.write(HOSTILE)
    typer.echo(HOSTILE, err=True)
    logging.getLogger("somebody").warning(HOSTILE)
    check(streams.text())


def test_warnings_and_tracebacks(tmp_path: Path) -> None:
    lines = ["from poise.terminal import guard", "import warnings", "guard()"]
    lines += [f"warnings.warn({HOSTILE!r})", f"raise ValueError({HOSTILE!r})"]
    (tmp_path / "crash.py").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, "crash.py"], cwd=tmp_path, capture_output=True, text=True)
    check(done.stderr)
    assert done.stderr.count("evil") >= 2


def test_an_encoding_without_letters_is_no_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch, encoding="ascii")
    terminal.guard()
    typer.echo(HOSTILE)
    check(streams.text())


def test_styles_and_progress_of_poise_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    streams = Streams(monkeypatch, tty=True)
    terminal.guard()
    Console(file=terminal.styled(sys.stdout), force_terminal=True).print("bold", style="bold")
    with progress_bar(f"[red]{HOSTILE}", 2) as advance:
        advance(2)
    text = streams.text()
    assert "\x1b[1mbold" in text
    assert "[red]x\\u001b[31m" in text
    assert "\u202e" not in text


def test_progress_of_other_packages_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    terminal.guard()
    for text in ("\r 10%|# | x\x1b[31m", "\n\x1b[A", "a\rb", "\x1b[Aa"):
        sys.stderr.write(text)
    assert streams.text() == "\r 10%|# | x\\u001b[31m\n\x1b[Aa\\rb\\u001b[Aa"


@pytest.mark.parametrize(("tty", "lines"), [(False, 1), (True, 3)])
def test_remarks_are_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch, tty: bool, lines: int) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    streams = Streams(monkeypatch, tty=tty)
    said = "no confidence threshold is certain to keep the error at 5 % with these calibration images; " * 2
    remark(said)
    found = streams.text().splitlines()
    assert len(found) >= lines
    assert (max(map(len, found)) <= 60) is tty
    assert " ".join(" ".join(found).split()) == f"poise: {said}".strip()


@pytest.mark.parametrize(("columns", "shown"), [(80, "3 labels"), (120, "{american_pit_bull_terrier, beagle, pug}")])
def test_answers_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, shown: str) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    labels = ("american_pit_bull_terrier", "beagle", "pug")
    result = Result(
        label=labels[0],
        confidence=0.9,
        probabilities=dict(zip(labels, (0.9, 0.06, 0.04), strict=True)),
        entropy=0.4,
        margin=0.84,
        method="kld+cats",
        source="photos/0175.jpg",
        fallback=False,
        degenerate=False,
        match=0.2,
        raw_confidence=0.95,
        prediction_set=labels,
        decision="answer",
    )
    Streams(monkeypatch, tty=True)
    text = result_rows.as_table([{"kld+cats": result}], result_rows.Columns(("kld+cats",), labels))
    lines = Text.from_ansi(text).plain.splitlines()
    assert max(map(len, lines)) <= columns
    assert shown in lines[2]
    assert {"0175.jpg", "american_pit_bull_terrier"} <= {*lines[2].split()}


def test_no_column_is_lost_beside_wide_numbers() -> None:
    columns = ("Dataset", "Method", *(f"confidence of group {at}" for at in range(8)), "95 % interval")
    table = Table("", columns, (Line.of("caltech101", "kld+cats", *["+0.123"] * 8, "[+0.00, +0.00]"),))
    for width in (40, 80, 120):
        shown = formats.terminal([table], width=width)
        assert {"caltech101", "kld+cats", "Dataset", "Method", "confidence"} <= {*shown.split()}
        assert "[+0.00, +0.00]" in shown
        assert "…" not in shown


def test_words_are_never_cut() -> None:
    cells = ("american_pit_bull.jpg", "american_pit_bull_terrier", "0.900", "3 labels", "answer")
    columns = ("image", "label", "confidence", "set", "decision")
    table = Table("", columns, (Line.of(*cells),), texts=2, more_texts=frozenset({3, 4}))
    for width in range(60, 90):
        assert {"american_pit_bull_terrier", "american_pit_bull.jpg"} <= {
            *formats.terminal([table], width=width).split()
        }
