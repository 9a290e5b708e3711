"""Calibration files: read back as written, and refused with a reason when damaged or hostile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from poise.calibration import Answers, Calibration, Conditions, assess
from poise.calibration.assess import recommend
from poise.calibration.stored import content_hash
from poise.errors import InvalidCalibrationError
from poise.metrics import Sample, estimate

CONDITIONS = Conditions(
    model="m",
    fingerprint="f",
    labels=("a", "b", "c"),
    template="{}",
    context="auto",
    init="template",
    init_hash="",
    views=2,
    augmix=False,
    seed=0,
)


def made(images: int = 40, methods: tuple[str, ...] = ("one", "two")) -> Calibration:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, images)
    answers = {
        name: Answers({"steps": 1, "terms": ("x",)}, rng.dirichlet(np.ones(3), images), [0.1, 0.2]) for name in methods
    }
    return assess(CONDITIONS, answers, labels, rng.random(images), [f"key {at}" for at in range(images)])


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("stored") / "c.json"
    made().save(path)
    return path.read_text("utf-8")


def test_round_trip(text: str, tmp_path: Path):
    (tmp_path / "c.json").write_text(text, "utf-8")
    again = Calibration.load(tmp_path / "c.json")
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text("utf-8") == text
    assert again.conditions == CONDITIONS
    assert again.method("one", {"steps": 1, "terms": ("x",)}).certificate(0.5) == (
        made().methods["one"].certificate(0.5)
    )


def test_reliability():
    part = made().methods["one"]
    bins, confidence = part.reliability(5), part.confidence
    for at in range(5):
        inside = (confidence > at / 5) & (confidence <= (at + 1) / 5)
        assert bins.count[at] == inside.sum()
        if inside.any():
            assert bins.accuracy[at] == pytest.approx(part.correct[inside].mean())


def _set(*path: str, value: object):
    def change(values: dict) -> None:
        *parents, last = path
        for name in parents:
            values = values[name]
        values[last] = value

    return change


def _drop(*path: str):
    def change(values: dict) -> None:
        *parents, last = path
        for name in parents:
            values = values[name]
        del values[last]

    return change


ONE = ("methods", "one")
HOSTILE = {
    "other format": _set("format", value="poise-calibration/9"),
    "no format": _drop("format"),
    "no methods": _drop("methods"),
    "methods is a list": _set("methods", value=[]),
    "method is a text": _set(*ONE, value="x"),
    "no conditions": _drop("conditions"),
    "views is a text": _set("conditions", "views", value="64"),
    "seed is a bool": _set("conditions", "seed", value=True),
    "labels empty": _set("conditions", "labels", value=[]),
    "labels of numbers": _set("conditions", "labels", value=[1, 2, 3]),
    "unknown recommendation": _set("recommended", value="three"),
    "recommendation is a list": _set("recommended", value=["one"]),
    "confidence above 1": _set(*ONE, "confidence", value=[2.0] * 40),
    "confidence not finite": _set(*ONE, "confidence", value=[float("nan")] * 40),
    "confidence too short": _set(*ONE, "confidence", value=[0.5]),
    "confidence nested": _set(*ONE, "confidence", value=[[0.5]] * 40),
    "confidence of texts": _set(*ONE, "confidence", value=["x"] * 40),
    "match not finite": _set(*ONE, "match", value=[float("inf")] * 40),
    "match too short": _set(*ONE, "match", value=[0.5]),
    "predictions of truth values": _set(*ONE, "predicted", value=[True] * 40),
    "predictions beyond the classes": _set(*ONE, "predicted", value=[7] * 40),
    "no checksum": _drop("checksum"),
    "labels beyond the classes": _set(*ONE, "labels", value=[7] * 40),
    "labels negative": _set(*ONE, "labels", value=[-1] * 40),
    "labels of floats": _set(*ONE, "labels", value=[0.5] * 40),
    "labels of nothing": _set(*ONE, "labels", value=[]),
    "no scores": _drop(*ONE, "scores"),
    "a score is missing": _drop(*ONE, "scores", "aps"),
    "scores not finite": _set(*ONE, "scores", "lac", value=[float("inf")] * 40),
    "unknown calibrator": _set(*ONE, "calibrator", value={"name": "code"}),
    "calibrator is a text": _set(*ONE, "calibrator", value="temperature"),
    "negative temperature": _set(*ONE, "calibrator", value={"name": "temperature", "temperature": -1.0}),
    "temperature is a text": _set(*ONE, "calibrator", value={"name": "temperature", "temperature": "1"}),
    "delta 0": _set(*ONE, "delta", value=0.0),
    "delta is a list": _set(*ONE, "delta", value=[]),
    "interval of two numbers": _set(*ONE, "seconds", value=[1.0, 2.0]),
    "interval of texts": _set(*ONE, "before", value={"ece": ["a", "b", "c"]}),
    "images is a number": _set("images", value=3),
    "more images than answers": _set("images", value=[str(at) for at in range(41)]),
    "looks of numbers": _set("looks", value=[1, 2]),
    "looks of lists": _set("looks", value=[["0" * 64]]),
    "looks that are no hashes": _set("looks", value=["x" * 64]),
    "looks that are too short": _set("looks", value=["0" * 63]),
    "more looks than images": _set("looks", value=[f"{at:064x}" for at in range(41)]),
    "delta of 400 digits": _set(*ONE, "delta", value=10**400),
    "confidence of 400 digits": _set(*ONE, "confidence", value=[10**400] * 40),
    "seconds of 400 digits": _set(*ONE, "seconds", value=[10**400] * 3),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_files(text: str, change, tmp_path: Path):
    values = json.loads(text)
    change(values)
    if "checksum" in values and "nan" not in (content := json.dumps(values).lower()) and "infinity" not in content:
        values["checksum"] = content_hash({key: part for key, part in values.items() if key != "checksum"})
    (tmp_path / "c.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidCalibrationError, match=r"c\.json' is not a calibration"):
        Calibration.load(tmp_path / "c.json")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"3", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}'])
def test_files_that_are_something_else(content: bytes, tmp_path: Path):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(InvalidCalibrationError):
        Calibration.load(tmp_path / "c.json")


def test_missing_files_and_folders(tmp_path: Path):
    for path in (tmp_path, tmp_path / "missing.json"):
        with pytest.raises(InvalidCalibrationError):
            Calibration.load(path)


def _estimates(quality: float, images: int = 200) -> dict:
    """A method that is right for this share of images, with probability 0.9 for its answer."""
    labels = np.zeros(images, dtype=np.int64)
    probs = np.tile([0.9, 0.1], (images, 1))
    probs[int(quality * images) :] = [0.1, 0.9]
    return estimate([Sample.of(probs, labels)], names=["accuracy", "brier"])


def test_the_cheapest_method_that_is_not_worse_is_recommended():
    good, slightly_better, bad = _estimates(0.9), _estimates(0.905), _estimates(0.5)
    name, reason = recommend({"cheap": 0.1, "dear": 2.0}, {"cheap": good, "dear": slightly_better})
    assert name == "cheap"
    assert "not significantly worse than dear" in reason
    name, reason = recommend({"cheap": 0.1, "dear": 2.0}, {"cheap": bad, "dear": good})
    assert name == "dear"
    assert "cheap costs less, but is significantly worse" in reason
    name, reason = recommend({"cheap": 0.1, "dear": 2.0}, {"cheap": good, "dear": bad})
    assert name == "cheap"
    assert "costs least" in reason
    assert recommend({"one": 1.0}, {"one": good}) == ("one", "one is the only method, with the Brier score 0.180.")
