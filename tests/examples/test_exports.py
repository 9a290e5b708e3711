"""Camera-trap observations, labels in samples of FiftyOne, and the claims of the paper in pictures."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from tests.evaluate.attempt import make_images

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def images(tmp_path):
    folder = make_images(tmp_path / "images", classes=1, each=2)
    (folder / "class0" / "broken.png").write_bytes(b"no image")
    return folder


def test_observations_of_camera_traps(images, tmp_path, monkeypatch):
    asked = ["classify", str(images), "--labels", "red fox,badger,empty", "--model", "tiny", "--views", "2"]
    answers = tmp_path / "answers.jsonl"
    done = CliRunner().invoke(app, [*asked, "--device", "cpu", "--format", "jsonl", "--out", str(answers)])
    assert done.exit_code == 3, done.output  # one image is broken
    (tmp_path / "names.csv").write_text("red fox,Vulpes vulpes\nbadger,Meles meles\n")
    given = ["x", str(answers), "--deployment", "site-1", "--names", str(tmp_path / "names.csv")]
    monkeypatch.setattr(sys, "argv", [*given, "--out", str(tmp_path / "observations.csv")])
    load("camera_traps").main()
    rows = list(csv.DictReader((tmp_path / "observations.csv").read_text().splitlines()))
    assert len(rows) == 2
    for row in rows:
        assert row["observationType"] in ("animal", "blank")
        assert row["scientificName"] in ("Vulpes vulpes", "Meles meles", "")
        assert 1 / 3 <= float(row["classificationProbability"]) <= 1
        assert row["classifiedBy"] == "poise, kld+cats"


def test_an_answer_that_abstains_is_not_classified():
    line = '{"label": "badger", "confidence": 0.5, "source": "a.jpg", "method": "kld+cats", "decision": "abstain"}'
    (row,) = load("camera_traps").observations([line], "site", {}, "empty")
    assert (row["observationType"], row["classificationProbability"]) == ("unclassified", "")
    assert "badger" in row["observationComments"]


class Sample(dict):
    def __init__(self, path):
        super().__init__()
        self.filepath, self.saved = str(path), False

    def save(self):
        self.saved = True


def test_labels_in_samples(images):
    """With FiftyOne's own class where it is installed, else with one of the same fields."""
    try:
        import fiftyone as fo
    except ImportError:
        fo = SimpleNamespace(Classification=SimpleNamespace)
    samples = [Sample(path) for path in sorted((images / "class0").glob("*.png"))]
    classifier = poise.Classifier(["cat", "dog"], "tiny", views=2, device="cpu")
    assert load("fiftyone_labels").add_labels(samples, classifier, fo) == 2
    first, _, broken = samples
    assert first["poise"].label in ("cat", "dog")
    assert len(first["poise"].logits) == 2
    assert first["poise_decision"] == "answer"
    assert "poise_error" in broken
    assert all(sample.saved for sample in samples)


def test_the_claims_in_pictures(tmp_path, monkeypatch, capsys):
    images = make_images(tmp_path / "images", classes=2, each=2)
    given = ["x", "--images", str(images), "--out", str(tmp_path / "out"), "--model", "tiny", "--views", "4"]
    monkeypatch.setattr(sys, "argv", given)
    load("claims").main()
    shown = capsys.readouterr().out
    assert shown.count(" here: ") == 5
    assert (tmp_path / "out" / "targets_and_temperatures.png").is_file()
    assert len(list((tmp_path / "out").glob("*.png"))) == 5
