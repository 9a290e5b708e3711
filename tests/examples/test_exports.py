"""Camera-trap observations, labels in samples of FiftyOne, and the claims of the paper in pictures."""

from __future__ import annotations

import csv
import importlib.util
import sys
from datetime import datetime
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


MEDIA = "mediaID,deploymentID,timestamp,filePath\n"
TYPES = {"animal", "human", "vehicle", "blank", "unknown", "unclassified"}  # of Camtrap DP 1.0, as the next two lines
REQUIRED = ("observationID", "deploymentID", "eventStart", "eventEnd", "observationLevel", "observationType")
TIME = "%Y-%m-%dT%H:%M:%S%z"


def check_table(rows: list[dict[str, str]]) -> None:
    """What the format asks of the columns that are written."""
    assert len({row["observationID"] for row in rows}) == len(rows)
    for row in rows:
        assert all(row[name] for name in REQUIRED)
        assert row["observationType"] in TYPES
        assert (row["observationLevel"], row["classificationMethod"]) in {("media", "machine"), ("media", "")}
        assert 0 <= float(row["classificationProbability"] or 0) <= 1
        for name in ("eventStart", "eventEnd", "classificationTimestamp"):
            assert not row[name] or datetime.strptime(row[name], TIME).tzinfo


def test_observations_of_camera_traps(images, tmp_path, monkeypatch):
    asked = ["classify", str(images), "--labels", "red fox,badger,empty", "--model", "tiny", "--views", "2"]
    answers = tmp_path / "answers.jsonl"
    done = CliRunner().invoke(app, [*asked, "--device", "cpu", "--format", "jsonl", "--out", str(answers)])
    assert done.exit_code == 3, done.output  # one image is broken
    (tmp_path / "names.csv").write_text("red fox,Vulpes vulpes\nbadger,Meles meles\n")
    rows = [f"m{at},site-1,2026-03-0{at + 1}T05:06:07+01:00,class0/{at}.png" for at in range(2)]
    (tmp_path / "media.csv").write_text(MEDIA + "\n".join(rows) + "\n")
    given = ["x", str(answers), "--media", str(tmp_path / "media.csv"), "--names", str(tmp_path / "names.csv")]
    monkeypatch.setattr(sys, "argv", [*given, "--out", str(tmp_path / "observations.csv")])
    load("camera_traps").main()
    rows = list(csv.DictReader((tmp_path / "observations.csv").read_text().splitlines()))
    check_table(rows)
    assert [row["mediaID"] for row in rows] == ["m0", "m1"]
    for at, row in enumerate(rows):
        assert (row["deploymentID"], row["eventStart"]) == ("site-1", f"2026-03-0{at + 1}T05:06:07+01:00")
        assert row["scientificName"] in ("Vulpes vulpes", "Meles meles", "")
        assert 1 / 3 <= float(row["classificationProbability"]) <= 1
        assert row["classifiedBy"] == "poise, kld+cats"
    (tmp_path / "media.csv").write_text(MEDIA + "m0,site-1,2026-03-01T05:06:07Z,other.png\n")
    with pytest.raises(SystemExit, match=r"0 rows of media\.csv"):
        load("camera_traps").main()


def test_types_of_observations():
    module = load("camera_traps")
    media = module.Media(
        [{"mediaID": "m", "deploymentID": "d", "timestamp": "2026-03-01T05:06:07Z", "filePath": "a.jpg"}]
    )
    given = {"names": {}, "types": module.TYPES, "when": "2026-03-02T05:06:07Z"}
    answer = '{"label": "%s", "confidence": 0.5, "source": "x/a.jpg", "method": "kld+cats", "decision": "%s"}'

    def row(label: str, decision: str = "answer") -> dict[str, str]:
        (found,) = module.observations([answer % (label, decision)], media, **given)
        check_table([found])
        return found

    assert [row(label)["observationType"] for label in ("badger", "person", "empty")] == ["animal", "human", "blank"]
    unsure = row("badger", "abstain")
    assert (unsure["observationType"], unsure["classificationProbability"]) == ("unclassified", "")
    assert unsure["scientificName"] == unsure["classificationMethod"] == ""  # people classify it
    assert "badger" in unsure["observationComments"]
    assert row("unknown")["observationType"] == "unclassified"


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
    assert shown.count(" by these images: ") == 5
    assert (tmp_path / "out" / "targets_and_temperatures.png").is_file()
    assert len(list((tmp_path / "out").glob("*.png"))) == 5
