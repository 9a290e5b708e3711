"""`--verbose`: what is loaded, where, and the time of each stage, on stderr and nowhere else."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise.cli.app import app
from poise.cli.verbose import _HANDLER
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
        r"poise: model tiny: loaded in [\d.]+ s, on cpu as torch.float32",
        r"poise: labels: 2 encoded in [\d.]+ s; kld\+cats, framework tpt, init template, template 'a photo of a \{\}.'",
        r"poise: images: batches of \d+, 3 views per image cut by torch \(view engine batched\), read by \d+ threads",
        r"poise: 2 images in [\d.]+ s, [\d.]+ per second: waiting for images [\d.]+ s, views [\d.]+ s, "
        r"encoding [\d.]+ s, answers [\d.]+ s",
    ):
        assert re.search(expected, told.stderr), (expected, told.stderr)


def test_the_next_command_is_quiet_again(folder: Path) -> None:
    command = ["classify", str(folder / "cat"), "--labels", "cat,dog", "--method", "zero-shot", *OPTIONS]
    CliRunner().invoke(app, [*command, "--verbose"])
    assert "loaded in" not in CliRunner().invoke(app, command).stderr
    assert _HANDLER not in logging.getLogger("poise").handlers


def test_bench_run_and_fit_take_it(folder: Path, tmp_path: Path) -> None:
    bench = ["bench", "run", "--dataset", f"folder:{folder}", "--method", "zero-shot", "--seeds", "1", *OPTIONS]
    told = CliRunner().invoke(app, [*bench, "--out", str(tmp_path / "runs"), "--verbose"])
    assert "poise: model tiny: loaded in" in told.stderr, told.output
    assert "answers" in told.stderr
    fit = ["fit", "tip-adapter", "--dataset", f"folder:{folder}", "--model", "tiny", "--augment", "0", "--shots", "1"]
    told = CliRunner().invoke(app, [*fit, "--out", str(tmp_path / "tip.safetensors"), "--device", "cpu", "--verbose"])
    assert "poise: model tiny: loaded in" in told.stderr, told.output


def test_quiet_and_verbose_contradict(folder: Path) -> None:
    command = ["classify", str(folder), "--labels", "cat,dog", *OPTIONS, "--quiet", "--verbose"]
    with pytest.raises(InvalidOptionError, match="contradict"):
        CliRunner().invoke(app, command, catch_exceptions=False)
