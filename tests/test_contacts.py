"""No file decides what is contacted: a model that would be downloaded is one that the user has named."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import poise
from poise.calibration import Calibration
from poise.cli.app import app
from poise.errors import InvalidCalibrationError, PoiseError
from poise.serve.settings import ServiceSettings

REMOTE = ["hf-hub:somebody/model", "transformers:somebody/model", "ViT-B-16/openai", "open_clip:ViT-B-16/openai"]
COMMANDS = {
    "classify": ["classify", "samples"],
    "serve": ["serve", "--port", "0"],
    "demo": ["demo", "--no-browser", "--port", "0"],
    "evaluate": ["evaluate", "labelled.csv"],
    "export": ["export", "onnx", "--out", "model.onnx"],
}


@pytest.fixture(scope="module")
def made() -> Calibration:
    images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
    classify = poise.Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu")
    return classify.calibrate(images, ["cat", "dog"] * 10)


def of_model(calibration: Calibration, model: str) -> Calibration:
    return replace(calibration, conditions=replace(calibration.conditions, model=model))


@pytest.fixture
def contacted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the names and addresses that are asked for."""
    asked: list[Any] = []

    def refuse(*place: Any, **options: Any) -> None:
        asked.append(place)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


@pytest.mark.parametrize("model", REMOTE)
@pytest.mark.parametrize("command", COMMANDS)
def test_the_model_of_a_calibration_is_not_downloaded(
    command: str,
    model: str,
    made: Calibration,
    contacted: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    of_model(made, model).save("calibration.json")
    Path("labelled.csv").write_text("path,label\na.png,cat\n", encoding="utf-8")
    result = CliRunner().invoke(app, [*COMMANDS[command], "--calibration", "calibration.json"])
    assert isinstance(result.exception, InvalidCalibrationError), result.output
    assert model in str(result.exception)
    assert "--model" in str(result.exception)
    assert contacted == []


@pytest.mark.parametrize("model", REMOTE)
def test_nor_in_python(model: str, made: Calibration, contacted: list[Any]) -> None:
    for open_calibration in (poise.Classifier.from_calibration, ServiceSettings.of_calibration):
        with pytest.raises(InvalidCalibrationError, match="Name the model yourself"):
            open_calibration(of_model(made, model))
    assert contacted == []


def test_a_model_that_the_user_names_is_asked_for(
    made: Calibration, contacted: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    of_model(made, REMOTE[0]).save(tmp_path / "calibration.json")
    given = ["--calibration", str(tmp_path / "calibration.json"), "--model", REMOTE[0]]
    result = CliRunner().invoke(app, ["classify", "samples", *given])
    assert isinstance(result.exception, PoiseError)
    assert not isinstance(result.exception, InvalidCalibrationError)


def test_embedded_and_local_models_are_used(made: Calibration, tmp_path: Path, contacted: list[Any]) -> None:
    made.save(tmp_path / "calibration.json")
    arguments = ["classify", "samples", "--calibration", str(tmp_path / "calibration.json"), "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    with pytest.raises(PoiseError, match="nowhere"):  # a folder of this machine, which does not exist
        poise.Classifier.from_calibration(of_model(made, "local-dir:/nowhere"))
    assert contacted == []
