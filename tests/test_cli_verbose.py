"""`--verbose` and `--quiet`: what commands print to stderr beside their results."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise import progress
from poise.cli.app import app
from poise.errors import InvalidOptionError

OPTIONS = ["--model", "tiny", "--views", "3", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for seed in range(2):
            pixels = np.random.default_rng([seed, *map(ord, name)]).integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{seed}.png")
    return tmp_path / "images"


def test_classify_says_what_it_does(folder: Path) -> None:
    command = ["classify", str(folder / "cat"), "--labels", "cat,dog", *OPTIONS]
    plain, told = (CliRunner().invoke(app, [*command, *more]) for more in ([], ["--verbose"]))
    assert told.stdout == plain.stdout
    assert "loaded in" not in plain.stderr
    for expected in (
        r"poise: model tiny: loaded in [\d.]+ s, on cpu in float32",
        r"poise: labels: 2 encoded in [\d.]+ s; kld\+cats, framework tpt, init template, template 'a photo of a \{\}.'",
        r"poise: images: batches of \d+, 3 views per image cut by torch \(view engine batched\), read by \d+ threads",
        r"poise: 2 images in [\d.]+ s, [\d.]+ per second: waiting for images [\d.]+ s, views [\d.]+ s, "
        r"encoding [\d.]+ s, answers [\d.]+ s",
    ):
        assert re.search(expected, told.stderr), (expected, told.stderr)


def test_the_next_command_is_quiet_again(folder: Path) -> None:
    command = ["classify", str(folder / "cat"), "--labels", "cat,dog", "--method", "zero-shot", *OPTIONS]
    CliRunner().invoke(app, command)
    before = list(logging.getLogger("poise").handlers)
    CliRunner().invoke(app, [*command, "--verbose"])
    assert "loaded in" not in CliRunner().invoke(app, command).stderr
    assert logging.getLogger("poise").handlers == before


def test_bench_run_and_fit_take_it(folder: Path, tmp_path: Path) -> None:
    bench = ["bench", "run", "--dataset", f"folder:{folder}", "--method", "zero-shot", "--seeds", "1", *OPTIONS]
    told = CliRunner().invoke(app, [*bench, "--out", str(tmp_path / "runs"), "--verbose"])
    assert "poise: model tiny: loaded in" in told.stderr, told.output
    assert "answers" in told.stderr
    fit = ["fit", "tip-adapter", "--dataset", f"folder:{folder}", "--model", "tiny", "--augment", "0", "--shots", "1"]
    told = CliRunner().invoke(app, [*fit, "--out", str(tmp_path / "tip.safetensors"), "--device", "cpu", "--verbose"])
    assert "poise: model tiny: loaded in" in told.stderr, told.output


@pytest.mark.parametrize("both", [["--quiet", "--verbose"], ["--verbose", "--quiet"]])
@pytest.mark.parametrize("command", [["classify", "x.png"], ["calibrate", "x", "--out", "y"], ["bench", "run"]])
def test_quiet_and_verbose_contradict(command: list[str], both: list[str]) -> None:
    with pytest.raises(InvalidOptionError, match="contradict"):
        CliRunner().invoke(app, [*command, *both], catch_exceptions=False)


DATASET = ["--dataset", "folder:FOLDER", "--model", "tiny", "--device", "cpu"]


@pytest.mark.parametrize(
    "command",
    [
        ["calibrate", "FOLDER", "--out", "OUT.json", "--method", "zero-shot", "--coverage", "0.5", *OPTIONS],
        ["bench", "run", *DATASET, "--method", "zero-shot", "--seeds", "1", "--out", "OUT", "--views", "3"],
        ["fit", "coop", *DATASET, "--shots", "1", "--augment", "0", "--epochs", "1", "--out", "OUT.safetensors"],
    ],
    ids=lambda command: command[0],
)
def test_quiet_commands_print_results_and_warnings(
    command: list[str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    shown = {}
    for more in ("--no-quiet", "--quiet"):
        places = (part.replace("FOLDER", str(folder)).replace("OUT", str(tmp_path / more)) for part in command)
        shown[more] = CliRunner().invoke(app, [*places, more])
        assert shown[more].exit_code == 0, shown[more].output
    assert shown["--quiet"].stdout
    assert len(shown["--quiet"].stderr) < len(shown["--no-quiet"].stderr)
    assert [line for line in shown["--quiet"].stderr.splitlines() if "4 images say little" not in line] == []
