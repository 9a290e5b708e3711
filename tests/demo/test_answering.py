"""What the page shows is what `Classifier` answers; every mistake has a message."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

import poise
from poise.demo.answering import PANELS, Question, Upload, answer, split_labels
from poise.demo.layout import banner, welcome
from poise.errors import InvalidLabelsError
from poise.serve.service import Service
from poise.serve.settings import ServiceSettings

LABELS = ["cat", "dog", "fox"]


@pytest.fixture
def upload(tmp_path: Path, image: bytes) -> Upload:
    path = tmp_path / "upload.png"
    path.write_bytes(image)
    return Upload(path, "my image.png")


def everything(service, question) -> list[dict[str, str]]:
    """Return the state of all panels after each change."""
    states, panels = [], dict.fromkeys(PANELS, "")
    for changed in answer(service, question):
        panels = {**panels, **changed}
        states.append(panels)
    return states


def bars(panel: str) -> dict[tuple[str, str], float]:
    found = re.findall(r'data-method="([^"]+)" data-label="([^"]+)">.*?<data value="([^"]+)"', panel)
    return {(method, label): float(value) for method, label, value in found}


def alert_of(service, question) -> str:
    last = everything(service, question)[-1]
    assert 'role="alert"' in last["status"]
    assert not any(last[name] for name in PANELS if name != "status")
    return last["status"]


def test_zero_shot_comes_first_and_the_numbers_are_those_of_the_classifier(service, image, upload) -> None:
    states = everything(service, Question(upload, "cat, dog\nfox", ("kld+cats", "tpt"), views=8, seed=1))
    first = next(state for state in states if state["answer"])
    assert {method for method, _ in bars(first["answer"])} == {"zero-shot"}
    assert 'class="bar waiting"' in first["answer"]
    last = states[-1]
    want = poise.Classifier(LABELS, service.encoder, ["zero-shot", "tpt", "kld+cats"], views=8, seed=1)(image)
    shown = bars(last["answer"])
    assert set(shown) == {(name, label) for name in want for label in LABELS}
    for (method, label), prob in shown.items():
        assert prob == pytest.approx(want[method].probabilities[label], abs=1e-6)
    assert all(last.values())
    assert "my image.png" in last["calls"]
    assert "waiting" not in last["answer"]


def test_zero_shot_alone(service, upload) -> None:
    last = everything(service, Question(upload, "cat,dog", ()))[-1]
    assert {method for method, _ in bars(last["answer"])} == {"zero-shot"}
    assert last["views"] == ""
    assert "kld+cats" not in last["calls"]


def test_a_calibration_is_used_for_its_methods(service, image, upload) -> None:
    rng = np.random.default_rng(2)
    images = list(rng.integers(0, 256, (40, 24, 24, 3), "uint8"))
    plain = poise.Classifier(LABELS, service.encoder, "zero-shot", views=8)
    calibration = plain.calibrate(images, (LABELS * 14)[:40])
    settings = ServiceSettings.of_calibration(calibration, device="cpu", coverage=0.8)
    other = Service(settings)
    other.start()
    try:
        question = Question(upload, ",".join(LABELS), ("tpt",), calibrated=True)
        last = everything(other, question)[-1]
        want = poise.Classifier(LABELS, service.encoder, "zero-shot", views=8, calibration=calibration)(image)
        assert bars(last["answer"])["zero-shot", want.label] == pytest.approx(want.confidence, abs=1e-6)
        # Calibrated and raw numbers are never side by side, so the call gives all numbers of the page.
        assert {method for method, _ in bars(last["answer"])} == {"zero-shot"}
        assert "Not shown: tpt" in last["answer"]
        assert "guaranteed" in last["advice"]
        assert "--calibration calibration.json" in last["calls"]
        assert "--method zero-shot" in last["calls"]
        off = everything(other, Question(upload, ",".join(LABELS), ("tpt",), calibrated=False))[-1]
        raw = poise.Classifier(LABELS, service.encoder, ["zero-shot", "tpt"], views=8)(image)
        for (method, label), prob in bars(off["answer"]).items():
            assert prob == pytest.approx(raw[method].probabilities[label], abs=1e-6)
        assert {method for method, _ in bars(off["answer"])} == set(raw)
        assert "switched off" in off["advice"]
        assert "uncalibrated=true" in off["calls"]
        others = everything(other, Question(upload, "cat, cow", (), calibrated=True))[-1]
        assert "for other labels" in others["advice"]
        assert "Calibrated</b> with 40 images, for the labels cat, dog, fox, with zero-shot" in banner(settings)
        gap, p = settings.calibration.methods["zero-shot"].gap
        assert f"{100 * abs(gap):.1f} points {'more' if gap > 0 else 'less'} on average" in banner(settings)
        assert f"p {p:.2g}" in banner(settings)
        assert "An answer tuned on the image" not in welcome(settings)  # the calibration has zero-shot alone
        assert "An answer tuned on the image" in welcome(dataclasses.replace(settings, calibration=None, coverage=None))
    finally:
        other.close()


def test_a_calibration_without_zero_shot_shows_its_own_method_alone(service, image, upload) -> None:
    images = list(np.random.default_rng(2).integers(0, 256, (40, 24, 24, 3), "uint8"))
    tuned = poise.Classifier(LABELS, service.encoder, "tpt", views=4)
    calibration = tuned.calibrate(images, (LABELS * 14)[:40])
    other = Service(ServiceSettings.of_calibration(calibration, device="cpu"))
    other.start()
    try:
        last = everything(other, Question(upload, ",".join(LABELS), (), calibrated=True))[-1]
        want = poise.Classifier(LABELS, service.encoder, "tpt", views=4, calibration=calibration)(image)
        assert {method for method, _ in bars(last["answer"])} == {"tpt"}
        assert bars(last["answer"])["tpt", want.label] == pytest.approx(want.confidence, abs=1e-6)
        assert "This is the answer of tpt." in last["answer"]
    finally:
        other.close()


def test_a_long_label_is_explained_without_words_of_python(service, upload) -> None:
    said = alert_of(service, Question(upload, "cat, " + "dog " * 90))
    assert "Shorten it or the prompt." in said
    assert "on_long_label" not in said


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("", "no labels"),
        (" , \n", "no labels"),
        ("cat, dog, cat", "Duplicate labels"),
        (", ".join(map(str, range(1001))), "accepts 1,000"),
        ("<script>, " + "x" * 2000, "characters"),
    ],
)
def test_wrong_labels_are_explained(service, upload, labels: str, message: str) -> None:
    said = alert_of(service, Question(upload, labels))
    assert message in said
    assert "<script>" not in said


def test_wrong_files_and_options_are_explained(service, upload, tmp_path: Path) -> None:
    assert "no image" in alert_of(service, Question(None, "cat, dog"))
    text = tmp_path / "text.png"
    text.write_text("no image at all")
    assert "text.png&#x27; is not an image" in alert_of(service, Question(Upload(text, "text.png"), "cat, dog"))
    cut = tmp_path / "cut.png"
    cut.write_bytes(upload.path.read_bytes()[:300])
    assert "truncated or damaged" in alert_of(service, Question(Upload(cut, "cut.png"), "cat, dog"))
    assert "placeholder" in alert_of(service, Question(upload, "cat, dog", template="no place")).lower()
    many = ("tpt", "c-tpt", "o-tpt", "kld", "kld+cats")
    assert "methods" in alert_of(service, Question(upload, "cat, dog", many))
    assert "views" in alert_of(service, Question(upload, "cat, dog", views=1000))


def test_a_defect_is_told_apart_from_a_mistake(service, upload, monkeypatch, caplog) -> None:
    monkeypatch.setattr(service, "submit", lambda image, job: 1 / 0)
    assert "terminal" in alert_of(service, Question(upload, "cat, dog"))
    assert "ZeroDivisionError" in caplog.text


def test_a_page_that_is_closed_cancels_its_job(service, upload) -> None:
    steps = answer(service, Question(upload, "cat, dog", views=8))
    next(steps)
    steps.close()


def test_labels_are_separated_by_commas_and_lines() -> None:
    assert split_labels(" cat,dog \n\n red fox,") == ("cat", "dog", "red fox")
    with pytest.raises(InvalidLabelsError, match="no labels"):
        split_labels("\n")
