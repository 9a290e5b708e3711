"""Labels in a tree, through everything that answers: Python, commands, server, client, export and page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise import Classifier
from poise.calibration import Calibration
from poise.cli.app import app
from poise.errors import InvalidCalibrationError, InvalidLabelsError
from poise.prompts.labels import read_labels
from poise.results import Result

LABELS = ["tabby", "siamese", "beagle", "poodle", "car"]
PATHS = ["animal > cat > tabby", "animal > cat > siamese", "animal > dog > beagle", "animal > dog > poodle", "car"]
TINY: dict[str, Any] = {"model": "tiny", "method": "zero-shot", "device": "cpu"}
ABOVE = {path.split(" > ")[-1]: path.split(" > ") for path in PATHS}


def images(count: int, seed: int = 0) -> list[np.ndarray]:
    """Images of noise in shades, which the model answers differently."""
    generator = np.random.default_rng(seed)
    return [(generator.integers(0, 256, (24, 24, 3)) * generator.random(3)).astype(np.uint8) for _ in range(count)]


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    """Of 120 images: the surer half of the answers is right, and the correct label of the others is its sibling."""
    classify = Classifier(LABELS, parents=PATHS, **TINY)
    seen, sibling = images(120, seed=1), dict(zip(LABELS, ["siamese", "tabby", "poodle", "beagle", "car"], strict=True))
    results = classify(seen)
    middle = float(np.median([result.confidence for result in results]))
    truth = [result.label if result.confidence > middle else sibling[result.label] for result in results]
    with pytest.warns(UserWarning, match="labels have no image"):
        return classify.calibrate(seen, truth)


@pytest.fixture(scope="module")
def classify(calibration: Calibration) -> Classifier[Any]:
    return Classifier.from_calibration(calibration, max_error=0.2, coverage=0.9, device="cpu")


def test_nodes_are_sums_and_the_path_goes_to_a_label() -> None:
    found: Result = Classifier(LABELS, parents=PATHS, **TINY)(images(1)[0])
    assert found.nodes is not None
    assert found.path is not None
    assert found.nodes["cat"] == pytest.approx(found.probabilities["tabby"] + found.probabilities["siamese"], abs=1e-12)
    assert list(found.nodes.values()) == sorted(found.nodes.values(), reverse=True)
    assert list(found.path) == ABOVE[found.path[-1]]
    assert (found.node, found.depth, found.decision) == (None, None, None)
    assert Classifier(LABELS, **TINY)(images(1)[0]).nodes is None
    assert Result.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_answers_are_nodes_that_reach_the_threshold(classify: Classifier[Any]) -> None:
    plain = Classifier(LABELS, parents=PATHS, **TINY)
    results = classify(images(40))
    assert {result.depth for result in results} > {1}  # some are answered with an inner node
    for result, raw in zip(results, plain(images(40)), strict=True):
        known = {**raw.probabilities, **(raw.nodes or {})}
        reached = [node for node in raw.path or () if known[node] >= result.threshold]
        assert result.node == (reached[-1] if reached else None)
        assert (result.depth, result.decision) == (len(reached), "answer" if reached else "abstain")
        assert "the correct label is below it" in (result.guarantee or "")
        assert {*(result.prediction_set or ())} <= {*LABELS, "cat", "dog", "animal"}
    assert f"answer: {results[0].node}" in str(results[0]) or results[0].node is None


def test_an_evaluation_counts_nodes_above_the_label_as_right(classify: Classifier[Any]) -> None:
    results = classify(images(40))
    truth = [(result.path or ("",))[-1] for result in results]  # below every answer
    found = classify.evaluate(images(40), truth).metrics()["zero-shot"]
    assert found["answered_error"].value == 0
    assert found["depth"].value == pytest.approx(np.mean([result.depth for result in results if result.depth]))
    other = classify.evaluate(images(40), ["car"] * 40)
    wrong = [result.node != "car" for result in results if result.node]
    assert other.metrics()["zero-shot"]["answered_error"].value == pytest.approx(np.mean(wrong))
    assert "Depth of the answers" in other.summary()


def test_a_calibration_is_for_its_tree(calibration: Calibration, tmp_path: Path) -> None:
    for parents in ((), [*PATHS[:4], "thing > car"]):
        with pytest.raises(InvalidCalibrationError, match="made with parents"):
            Classifier(LABELS, parents=parents, calibration=calibration, **TINY)
    calibration.save(tmp_path / "c.json")
    read = Calibration.load(tmp_path / "c.json")
    assert read.tree is not None
    assert read.tree.paths == tuple(PATHS)
    with pytest.raises(InvalidLabelsError, match="cycle"):
        Classifier(LABELS, parents={**dict.fromkeys(LABELS, "a"), "a": "b", "b": "a"}, **TINY)
    with pytest.raises(InvalidCalibrationError, match="error of nodes at 1 %"):
        Classifier.from_calibration(calibration, max_error=0.01, device="cpu")


def save(folder: Path, count: int, truth: Callable[[int], str], seed: int) -> Path:
    for at, pixels in enumerate(images(count, seed)):
        place = folder / truth(at) / f"{at}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place)
    return folder


def invoke(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_commands_read_paths_and_answer_with_nodes(tmp_path: Path) -> None:
    plain = Classifier(LABELS, **TINY)
    answers = [result.label for result in plain(images(60, seed=3))]
    labelled = save(tmp_path / "labelled", 60, lambda at: answers[at], seed=3)
    tree, out = tmp_path / "tree.csv", tmp_path / "c.json"
    tree.write_text("path\n" + "\n".join(PATHS) + "\n", "utf-8")
    options = ["--model", "tiny", "--device", "cpu", "--method", "zero-shot"]
    invoke("calibrate", labelled, "--labels-file", tree, "--out", out, *options)
    new = save(tmp_path / "new", 8, lambda at: ".", seed=4)
    given = ["--calibration", out, "--device", "cpu", "--max-error", "0.2", "--quiet"]
    rows = json.loads(invoke("classify", new, *given, "--format", "json"))
    assert {row["decision"] for row in rows} <= {"answer", "abstain"}
    assert any(row["node"] for row in rows)
    table = invoke("classify", new, *given, "--sort-into", tmp_path / "sorted")
    assert "node" in table.splitlines()[0]
    assert {folder.name for folder in (tmp_path / "sorted").iterdir()} == {row["node"] or "unsure" for row in rows}
    own = ["--labels", ", ".join(PATHS), *options, "--threshold", "0.6", "--format", "csv", "--quiet"]
    header = invoke("classify", new, *own).splitlines()[0]
    assert "node,depth,decision" in header
    more = save(tmp_path / "more", 20, lambda at: answers[at], seed=5)
    page = tmp_path / "page.html"
    shown = invoke("evaluate", more, *given, "--out", page)
    assert "Steps up to a common node" in shown
    assert "by the depth of their answer" in page.read_text("utf-8")


def test_label_files_with_a_column_of_paths(tmp_path: Path) -> None:
    file = tmp_path / "tree.csv"
    file.write_text("id,path\n1,cat > tabby\n2,\n", "utf-8")
    assert read_labels(file) == ["cat > tabby", ""]
    file.write_text("id,label\n1,tabby\n", "utf-8")
    with pytest.raises(InvalidLabelsError, match="no column path"):
        read_labels(file)


def test_a_server_answers_with_nodes(calibration: Calibration) -> None:
    from poise.client import Client
    from poise.serve.service import Service
    from poise.serve.settings import ServiceSettings
    from tests.serve.live import png, running

    settings = ServiceSettings.of_calibration(calibration, device="cpu", max_error=0.2)
    with running(Service(settings)) as live, Client(live.url) as client:
        expected = Classifier.from_calibration(calibration, max_error=0.2, device="cpu")(png(5))
        found = client.classify(png(5)).result
        assert (found.node, found.depth, found.path) == (expected.node, expected.depth, expected.path)
        assert found.nodes == pytest.approx(expected.nodes, abs=1e-6)
        other = client.classify(png(5), labels=["a", "b"], parents=["x > a", "b"], uncalibrated=True).result
        assert other.nodes == pytest.approx({"x": other.probabilities["a"]})
        assert client.classify(png(5), labels=["a", "b"], uncalibrated=True).result.nodes is None
        with pytest.raises(Exception, match="Labels have no parent: 'b'"):
            client.classify(png(5), labels=["a", "b"], parents=["x > a"], uncalibrated=True)


def test_an_exported_file_answers_with_nodes(classify: Classifier[Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="install the extra 'onnx'")
    pytest.importorskip("onnxscript", reason="install the extra 'onnx'")
    from poise.export import export_onnx, open_onnx

    export_onnx(classify, tmp_path / "tree.onnx")
    reopened = open_onnx(tmp_path / "tree.onnx")
    expected = classify(images(20))
    for one, other in zip(expected, reopened(images(20)), strict=True):
        assert (one.node, one.decision, one.prediction_set) == (other.node, other.decision, other.prediction_set)
    session = onnxruntime.InferenceSession(tmp_path / "tree.onnx", providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["poise"])["nodes"]
    views = np.stack([view.numpy() for view in classify.predictor.views(images(20))])[:, :1]
    outputs = [output.name for output in session.get_outputs()]
    found = dict(zip(outputs, session.run(None, {"views": views}), strict=True))
    assert [names[at] if at >= 0 else None for at in found["node"]] == [result.node for result in expected]
    assert found["answered"].tolist() == [result.decision == "answer" for result in expected]


def test_the_page_shows_the_path(tmp_path: Path, calibration: Calibration) -> None:
    pytest.importorskip("gradio", reason="install the extra 'demo'")
    from poise.demo.answering import Question, Upload, answer
    from poise.serve.service import Service
    from poise.serve.settings import ServiceSettings
    from tests.serve.live import png

    (tmp_path / "image.png").write_bytes(png(5))
    service = Service(ServiceSettings.of_calibration(calibration, device="cpu", max_error=0.2))
    service.start()
    panels: dict[str, str] = {}
    question = Question(Upload(tmp_path / "image.png", "image.png"), ", ".join(PATHS), calibrated=True)
    for changed in answer(service, question):
        panels |= changed
    service.close()
    expected = Classifier.from_calibration(calibration, max_error=0.2, device="cpu")(png(5))
    assert "In the tree: " in panels["answer"]
    assert f"Sure enough: {expected.node}" in panels["answer"] or expected.node is None
    assert "parents=[" in panels["calls"].replace("&#x27;", "'")
    assert "animal &gt; cat &gt; tabby,animal" in panels["calls"]
