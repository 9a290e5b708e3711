"""Independent labels through everything that answers: Python, commands, server, client, export and page."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise import Classifier, load_model
from poise.calibration import Calibration, IndependentCalibration
from poise.cli.app import app
from poise.cli.input.tagged_images import read_tagged
from poise.errors import (
    InvalidCalibrationError,
    InvalidDatasetError,
    InvalidLabelsError,
    InvalidOptionError,
    PoiseError,
)
from poise.results import Result
from tests.backbones.saved import save_siglip

LABELS = ["cat", "dog", "indoor"]
TINY: dict[str, Any] = {"model": "tiny", "device": "cpu"}


def images(count: int, seed: int = 0) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [(generator.integers(0, 256, (24, 24, 3)) * generator.random(3)).astype(np.uint8) for _ in range(count)]


def tags(classifier: Classifier[Any], sources: list[Any]) -> list[list[str]]:
    """Labels that images have: those with a high logit."""
    logits = np.array([found["zero-shot"].logits for found in classifier.predictions(sources)])  # type: ignore[union-attr]
    high = logits > np.median(logits, axis=0)
    return [[label for label, has in zip(LABELS, row, strict=True) if has] for row in high]


@pytest.fixture(scope="module")
def calibration() -> IndependentCalibration:
    classify = Classifier(LABELS, independent=True, **TINY)
    seen = images(150, seed=1)
    return classify.calibrate(seen, tags(classify, seen))


@pytest.fixture(scope="module")
def classify(calibration: IndependentCalibration) -> Classifier[Any]:
    return Classifier.from_calibration(calibration, precision=0.8, recall=0.8, device="cpu")


def test_a_softmax_model_needs_a_calibration_and_says_why() -> None:
    with pytest.raises(InvalidOptionError, match="trained to compare labels with each other"):
        Classifier(LABELS, independent=True, **TINY)(images(1)[0])


def test_a_sigmoid_model_has_its_own_scale_and_bias(tmp_path: Path) -> None:
    save_siglip(tmp_path / "siglip")
    encoder = load_model(f"transformers:{tmp_path / 'siglip'}", device="cpu", dtype="float64")
    result = Classifier(["cat"], encoder, independent=True)(images(1)[0], details=False)
    plain = Classifier(["cat", "dog"], encoder, "zero-shot")(images(1)[0], details=True)
    logit = plain.details.logits["cat"]
    assert result.probabilities["cat"] == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-9)
    assert not result.degenerate
    assert result.outcomes is None


def test_outcomes_follow_the_thresholds(classify: Classifier[Any], calibration: IndependentCalibration) -> None:
    limits = calibration.thresholds(0.8, 0.8)
    found = classify(images(30))
    words = [word for result in found for word in (result.outcomes or {}).values()]
    assert {"yes", "no"} <= set(words)
    plain = Classifier(LABELS, **TINY, method="zero-shot")
    for result, raw in zip(found, plain(images(30), details=True), strict=True):
        for at, label in enumerate(LABELS):
            logit = raw.details.logits[label]
            cosine = logit / plain.encoder.scale
            expected = "yes" if cosine >= limits.yes[at] else "no" if cosine < limits.no[at] else "unsure"
            assert (result.outcomes or {})[label] == expected
            chance = 1 / (1 + np.exp(-(calibration.fit.a[at] * logit + calibration.fit.b[at])))
            assert result.probabilities[label] == pytest.approx(chance, abs=1e-5)
        assert result.confidence == max(result.probabilities.values())
        assert "each label's yes" in (result.guarantee or "")
        assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result
    assert "yes: " in str(found[0])


def test_calibration_images_are_refused_and_an_evaluation_leaves_them_out(classify: Classifier[Any]) -> None:
    with pytest.raises(PoiseError, match="one of the calibration images"):
        classify(images(150, seed=1)[0])
    sources = images(150, seed=1)[:5] + images(60, seed=2)
    found = classify.evaluate(sources, tags(classify, sources))
    assert (len(found), sum(found.left_out.values())) == (60, 5)
    assert found.metrics()["map"].value > 0.9
    assert "Mean average precision" in found.summary()


def test_copies_of_an_image_add_up_their_labels() -> None:
    one, two = images(2)
    made = Classifier(LABELS, independent=True, **TINY).calibrate([one, two, one], [["cat"], [], ["dog"]])
    assert made.truth.tolist() == [[True, True, False], [False, False, False]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "tpt"}, "can't be answered by tpt"),
        ({"method": ["zero-shot", "kld"]}, "can't be answered by zero-shot, kld"),
        ({"parents": ["x > cat", "dog", "indoor"]}, "in groups or in a tree"),
        ({"groups": ["a", "a", "b"], "one_label": True}, "in groups or in a tree"),
        ({"coverage": 0.9}, "need a calibration|is for labels of which one applies"),
        ({"reject": 0.1}, "reject is for labels of which one applies"),
        ({"precision": 0.9}, "need independent labels and their calibration"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        Classifier(LABELS, independent=True, **options, **TINY)


@pytest.mark.parametrize("negation", ["no dog", "not a dog", "without the Dog", "no_dog", "non-dog"])
def test_negations_of_labels_are_refused(negation: str) -> None:
    for labels, options in (
        (["dog", negation], {"independent": True}),
        ({"a": ["dog", negation], "b": ["in", "out"]}, {}),
    ):
        with pytest.raises(InvalidLabelsError, match=f"negations of others: '{negation}'"):
            Classifier(labels, **options, **TINY)  # type: ignore[arg-type]
    Classifier(["dog", "no entry sign"], independent=True, **TINY)  # something that is in the image


def test_calibrations_of_the_other_kind_are_refused(calibration: IndependentCalibration, tmp_path: Path) -> None:
    with pytest.raises(InvalidCalibrationError, match="of independent labels, and the classifier has labels of which"):
        Classifier(LABELS, calibration=calibration, **TINY)
    with pytest.warns(UserWarning, match="images say little"):
        other = Classifier(LABELS, method="zero-shot", **TINY).calibrate(images(6), LABELS * 2)
    assert isinstance(other, Calibration)
    with pytest.raises(InvalidCalibrationError, match="of labels of which one applies"):
        Classifier(LABELS, independent=True, calibration=other, **TINY)
    with pytest.raises(InvalidOptionError, match="precision or recall"):
        Classifier.from_calibration(calibration, max_error=0.1, device="cpu")
    with pytest.raises(InvalidOptionError, match="list of labels per image"):
        Classifier(LABELS, independent=True, **TINY).calibrate(images(2), ["cat", "dog"])


def write(folder: Path, sources: list[np.ndarray]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{at}.png" for at in range(len(sources))]
    for path, pixels in zip(paths, sources, strict=True):
        Image.fromarray(pixels).save(path)
    return paths


def test_images_with_several_labels_in_three_forms(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("path,labels\nx.png,cat; indoor\ny.png,\nx.png,dog\n", "utf-8")
    assert read_tagged(table) == (
        [tmp_path / "x.png", tmp_path / "y.png"],
        [["cat", "indoor", "dog"], []],
        ["cat", "indoor", "dog"],
    )
    coco = tmp_path / "a.json"
    values: dict[str, Any] = {
        "images": [{"id": 1, "file_name": "x.png"}, {"id": 7, "file_name": "y.png"}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 5, "name": "dog"}],
        "annotations": [{"image_id": 1, "category_id": 5}, {"image_id": 1, "category_id": 3}],
    }
    coco.write_text(json.dumps(values), "utf-8")
    assert read_tagged(coco)[1] == [["dog", "cat"], []]
    write(tmp_path / "tags" / "cat", images(2))
    write(tmp_path / "tags" / "dog", images(1))
    assert read_tagged(tmp_path / "tags")[1] == [["cat"], ["cat"], ["dog"]]
    for text in (
        "{",
        "[]",
        json.dumps({**values, "annotations": [{"image_id": 2, "category_id": 3}]}),
        json.dumps({"images": []}),
    ):
        coco.write_text(text, "utf-8")
        with pytest.raises(InvalidDatasetError, match="can't be read as labelled images"):
            read_tagged(coco)
    for text in ("path,labels\n,cat\n", "file,labels\na,b\n", "path,labels\n"):
        table.write_text(text, "utf-8")
        with pytest.raises(InvalidDatasetError):
            read_tagged(table)


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_commands_calibrate_classify_and_evaluate(tmp_path: Path) -> None:
    plain = Classifier(LABELS, independent=True, **TINY)
    for name, seed, count in (("seen", 1, 150), ("new", 2, 20)):
        sources = images(count, seed)
        rows = zip(write(tmp_path / name, sources), tags(plain, sources), strict=True)
        lines = [f"{name}/{path.name},{';'.join(labels)}" for path, labels in rows]
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,labels", *lines]) + "\n", "utf-8")
    options = ["--model", "tiny", "--device", "cpu", "--independent", "--labels", ",".join(LABELS), "--quiet"]
    out = tmp_path / "c.json"
    shown = invoke("calibrate", tmp_path / "seen.csv", *options, "--out", out)
    assert "by precision" in shown
    level = float(shown.split("--precision")[1].split()[0])
    assert level in (0.7, 0.8, 0.9, 0.95)  # one that can be kept
    for command, message in (
        (["monitor", out, tmp_path / "x.jsonl"], "it is of independent labels"),
        (["calibrate", tmp_path / "seen.csv", "--out", out], "For several labels per image: --independent"),
    ):
        assert message in str(CliRunner().invoke(app, [str(word) for word in command]).exception)
    given = ["--calibration", out, "--device", "cpu", "--quiet", "--precision", "0.8", "--recall", "0.8"]
    rows = json.loads(invoke("classify", tmp_path / "new", *given, "--format", "json"))
    assert {word for row in rows for word in row["outcomes"].values()} >= {"yes", "no"}
    assert "yes" in invoke("classify", tmp_path / "new", *given).splitlines()[0]
    table = csv.DictReader(io.StringIO(invoke("classify", tmp_path / "new", *given, "--format", "csv")))
    parts = tmp_path / "parts"
    invoke("classify", tmp_path / "new", *given, "--out", f"{parts}/")
    stored = pq.read_table([*parts.glob("*.parquet")]).to_pylist()
    for row, line, part in zip(rows, table, sorted(stored, key=lambda part: part["source"]), strict=True):
        for word in ("yes", "unsure"):
            labels = [label for label, said in row["outcomes"].items() if said == word]
            assert part[word] == json.loads(line[word]) == labels
        assert part["confidence"] == pytest.approx(row["confidence"], abs=1e-6)
    found = invoke("evaluate", tmp_path / "new.csv", *given[:5], "--precision", "0.8", "--out", tmp_path / "e.json")
    assert "Mean average precision" in found
    assert json.loads((tmp_path / "e.json").read_text("utf-8"))["images"] == 20
    refused = CliRunner().invoke(app, ["classify", str(tmp_path / "new"), *options, "--method", "tpt"])
    assert "can't be answered by tpt" in str(refused.exception)
    for added, message in (
        (["--threshold", "0.5"], "for labels of which one applies"),
        (["--sort-into", str(tmp_path / "sorted")], "one answer per image"),
    ):
        refused = CliRunner().invoke(app, ["classify", str(tmp_path / "new"), *map(str, given), *added])
        assert message in str(refused.exception)


def test_a_server_a_client_and_the_page(calibration: IndependentCalibration, tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="install the extra 'demo'")
    from poise.client import Client
    from poise.demo.answering import Question, Upload, answer
    from poise.serve.service import Service
    from poise.serve.settings import ServiceSettings
    from tests.serve.live import png, running

    service = Service(ServiceSettings.of_calibration(calibration, device="cpu", precision=0.8))
    expected = Classifier.from_calibration(calibration, precision=0.8, device="cpu")(png(5))
    with running(service) as live, Client(live.url) as client:
        found = client.classify(png(5)).result
        assert found.outcomes == expected.outcomes
        assert found.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
        other = client.classify(png(5), independent=False, uncalibrated=True, methods=["zero-shot"]).result
        assert sum(other.probabilities.values()) == pytest.approx(1, abs=1e-6)
        with pytest.raises(PoiseError, match="can't be answered by tpt"):
            client.classify(png(5), methods=["tpt"])
        (tmp_path / "image.png").write_bytes(png(5))
        panels: dict[str, str] = {}
        question = Question(Upload(tmp_path / "image.png", "image.png"), ", ".join(LABELS), calibrated=True)
        for changed in answer(service, question):
            panels |= changed
    assert "The labels" in panels["answer"]
    assert "yes are right" in panels["advice"]
    assert "independent=True" in panels["calls"]


def test_an_exported_file_answers_alike(classify: Classifier[Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="install the extra 'onnx'")
    pytest.importorskip("onnxscript", reason="install the extra 'onnx'")
    from poise.export import export_onnx, open_onnx

    export_onnx(classify, tmp_path / "labels.onnx")
    expected = classify(images(12))
    for one, other in zip(expected, open_onnx(tmp_path / "labels.onnx")(images(12)), strict=True):
        assert one.outcomes == other.outcomes
        assert other.probabilities == pytest.approx(one.probabilities, abs=1e-4)
    session = onnxruntime.InferenceSession(tmp_path / "labels.onnx", providers=["CPUExecutionProvider"])
    views = np.stack([view.numpy() for view in classify.predictor.views(images(12))])
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(None, {"views": views}), strict=True))
    for at, result in enumerate(expected):
        said = {
            label: "yes" if found["yes"][at, row] else "no" if found["no"][at, row] else "unsure"
            for row, label in enumerate(LABELS)
        }
        assert said == result.outcomes
