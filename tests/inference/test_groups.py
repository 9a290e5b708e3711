"""Groups of labels: each is answered as if the others were not there, through everything that answers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise import Classifier
from poise.cli.app import app
from poise.errors import InvalidLabelsError, InvalidOptionError
from poise.prompts.labels import read_labels, split_groups
from poise.results import Result

GROUPS = {"animal": ["cat", "dog", "fox"], "place": ["indoor", "outdoor"]}
FLAT = ["cat", "dog", "fox", "indoor", "outdoor"]
NAMES = ["animal"] * 3 + ["place"] * 2
TINY: dict[str, Any] = {"model": "tiny", "device": "cpu", "views": 4}


def image(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (24, 24, 3), np.uint8)


def test_each_group_is_answered_as_by_a_classifier_of_its_own() -> None:
    methods = ["zero-shot", "kld+cats", "zero", "tpt | cots"]
    found = Classifier(GROUPS, method=methods, **TINY)([image(0), image(1)], details=True)
    for name, labels in GROUPS.items():
        alone = Classifier(labels, method=methods, **TINY)([image(0), image(1)], details=True)
        for one, other in zip(found, alone, strict=True):
            for method in methods:
                part = (one[method].groups or {})[name]
                assert part.probabilities == pytest.approx(other[method].probabilities, abs=1e-6)
                assert part.label == other[method].label
                assert part.details is not None


def test_the_joint_answer() -> None:
    found = Classifier(FLAT, groups=NAMES, method="zero-shot", **TINY)(image())
    assert found.groups is not None
    animal, place = found.groups["animal"], found.groups["place"]
    assert found.label == f"{animal.label} | {place.label}"
    assert found.confidence == pytest.approx(animal.confidence * place.confidence)
    assert found.entropy == pytest.approx(animal.entropy + place.entropy)
    assert math.fsum(found.probabilities.values()) == pytest.approx(2)
    assert set(found.probabilities) == set(FLAT)
    assert Result.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    probs = Classifier(GROUPS, method="zero-shot", **TINY).predict_proba([image()])
    np.testing.assert_allclose(probs[:, :3].sum(1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        ({"a": ["cat", "dog"], "b": ["dog", "fox"]}, {}, "Labels are in two groups: 'dog' in a and b"),
        ({"a": ["cat", "dog"], "b": ["fox"]}, {}, "is the only label"),
        ({"a": ["cat", "dog"], "b": []}, {}, "empty"),
        (FLAT, {"groups": NAMES[:3]}, "3 names of groups for 5 labels"),
        (GROUPS, {"parents": ["x > cat"]}, "in groups and in a tree"),
        (GROUPS, {"calibration": "c.json"}, "one group of labels"),
    ],
)
def test_what_is_refused(labels: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidLabelsError, InvalidOptionError), match=message):
        Classifier(labels, **options, **TINY)


def test_groups_are_neither_calibrated_nor_exported(tmp_path: Path) -> None:
    from poise.export import export_onnx

    classify = Classifier(GROUPS, method="zero-shot", **TINY)
    with pytest.raises(InvalidOptionError, match="each group by itself"):
        classify.calibrate([image()], ["cat"])
    with pytest.raises(InvalidOptionError, match="one file for each group"):
        export_onnx(classify, tmp_path / "x.onnx")


def invoke(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_commands_read_groups(tmp_path: Path) -> None:
    Image.fromarray(image()).save(tmp_path / "a.png")
    (tmp_path / "labels.txt").write_text("cat\ndog\nfox\n|\nindoor\noutdoor\n", "utf-8")
    assert split_groups(read_labels(tmp_path / "labels.txt"))[0] == FLAT
    options = ["--model", "tiny", "--device", "cpu", "--method", "zero-shot", "--quiet"]
    expected = Classifier(GROUPS, method="zero-shot", **TINY)(tmp_path / "a.png")
    for given in (["--labels", "cat,dog,fox|indoor,outdoor"], ["--labels-file", tmp_path / "labels.txt"]):
        (row,) = json.loads(invoke("classify", tmp_path / "a.png", *given, *options, "--format", "json").output)
        assert row["label"] == expected.label
        assert [part["label"] for part in row["groups"].values()] == expected.label.split(" | ")
    table = invoke("classify", tmp_path / "a.png", "--labels", "cat,dog,fox | indoor,outdoor", *options).output
    assert expected.label in table
    sorting = invoke("classify", tmp_path, "--labels", "a,b | c,d", *options, "--sort-into", tmp_path / "x")
    assert "one answer per image" in str(sorting.exception)
    (tmp_path / "images" / "cat").mkdir(parents=True)
    Image.fromarray(image()).save(tmp_path / "images" / "cat" / "a.png")
    done = invoke("calibrate", tmp_path / "images", "--labels", "cat,dog | in,out", "--out", tmp_path / "c", *options)
    assert "one group of labels" in str(done.exception)


def test_a_server_and_the_page_answer_groups(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="install the extra 'demo'")
    from poise.client import Client
    from poise.demo.answering import Question, Upload, answer
    from poise.serve.service import Service
    from poise.serve.settings import ServiceSettings
    from tests.serve.live import png, running

    service = Service(ServiceSettings(model="tiny", device="cpu", views=4))
    with running(service) as live, Client(live.url) as client:
        found = client.classify(png(3), labels=FLAT, groups=NAMES, methods=["kld+cats"]).result
        expected = Classifier(GROUPS, **TINY)(png(3))
        assert found.groups is not None
        assert found.label == expected.label
        assert found.groups["place"].probabilities == pytest.approx(
            (expected.groups or {})["place"].probabilities, abs=1e-5
        )
        (tmp_path / "image.png").write_bytes(png(3))
        panels: dict[str, str] = {}
        for changed in answer(
            service, Question(Upload(tmp_path / "image.png", "image.png"), "cat, dog, fox\n|\nindoor, outdoor")
        ):
            panels |= changed
    assert "The answers" in panels["answer"]
    for label in FLAT:
        assert f'data-label="{label}"' in panels["answer"]
    assert "cat,dog,fox | indoor,outdoor" in panels["calls"]
    assert "kld+cats: indoor, outdoor" in panels["views"]
    assert "2 answers together" in panels["advice"]
