"""Exported files answer as poise does, without torch, and files that poise did not write are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("onnx", reason="install the extra 'onnx'")
pytest.importorskip("onnxscript", reason="install the extra 'onnx'")
pytest.importorskip("onnxruntime", reason="install the extra 'onnx'")

import onnx
import onnxruntime
from PIL import Image

from poise import Classifier, PoiseError, load_model
from poise.backbones.loaders.onnx_file import seal
from poise.calibration import Calibrator, Curve
from poise.calibration.conformal import Lac
from poise.cli.app import app
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.export import export_onnx, open_onnx
from poise.export.head import calibrated, in_set
from poise.inference.guarantees import conditions_of
from tests.backbones.saved import save_clip, save_open_clip, save_siglip

LABELS = ["cat", "dog", "great white shark"]
SCRIPT = Path(__file__).parents[2] / "examples" / "onnx_classify.py"
WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "poise", "onnx", "scipy"):
    sys.modules[name] = None  # importing it fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("below", "member"), [(1e-10, True), (1e-6, False)])  # float32 can't tell a quarter of 1e-8
def test_sets_take_scores_on_the_boundary_as_calibrations_do(below: float, member: bool) -> None:
    """A score may differ from the quantile by rounding; -log 0.25 - ``below`` excludes 0.25 only if that is more."""
    raw = torch.tensor([[0.5, 0.25, 0.2, 0.05]])
    assert in_set(raw, -np.log(0.25) - below).tolist() == [[True, member, False, False]]
    assert Lac().sets(raw.numpy(), -np.log(0.25) - below).members.tolist() == [[True, member, False, False]]


def images(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 40, 52, 3), np.uint8))


@pytest.fixture(scope="module")
def calibrated_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Classifier[Any], Any]:
    """A file with a calibration, the classifier that it was made from, and the calibration."""
    plain = Classifier(LABELS, model="tiny", method="zero-shot", device="cpu")
    seen = images(60, seed=1)
    truth = [result.label for result in plain(seen)]  # every answer is right, so that a threshold can be certified
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*labels have no image")
        calibration = plain.calibrate(seen, truth, coverage=0.8)
    classifier = Classifier(
        LABELS, plain.encoder, "zero-shot", calibration=calibration, coverage=0.8, max_error=0.2, device="cpu"
    )
    path = tmp_path_factory.mktemp("onnx") / "calibrated.onnx"
    export_onnx(classifier, path)
    return path, classifier, calibration


def test_a_calibrated_file_answers_as_the_classifier_does(calibrated_file: tuple[Path, Classifier[Any], Any]) -> None:
    path, classifier, _ = calibrated_file
    reopened = open_onnx(path)
    for one, other in zip(classifier(images(12)), reopened(images(12)), strict=True):
        assert other.label == one.label
        assert other.prediction_set == one.prediction_set
        assert other.decision == one.decision
        assert other.probabilities == pytest.approx(one.probabilities, abs=1e-4)
        assert other.raw_confidence == pytest.approx(one.raw_confidence, abs=1e-4)


def test_the_example_script_needs_no_torch(calibrated_file: tuple[Path, Classifier[Any], Any], tmp_path: Path) -> None:
    path, classifier, _ = calibrated_file
    files = [tmp_path / f"{at}.png" for at in range(4)]
    for file, pixels in zip(files, images(4, seed=3), strict=True):
        Image.fromarray(pixels).save(file)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(SCRIPT), str(path), *map(str, files)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line, file in zip(done.stdout.splitlines(), files, strict=True):
        row, result = json.loads(line), classifier(file)
        assert row["label"] == result.label
        assert row["confidence"] == pytest.approx(result.confidence, abs=1e-4)
        assert sorted(row["set"]) == sorted(result.prediction_set)
        assert row["decision"] == result.decision
    assert len(SCRIPT.read_text().splitlines()) <= 48
    bad = subprocess.run([sys.executable, str(SCRIPT), str(path), str(tmp_path)], capture_output=True, text=True)
    assert bad.returncode == 1
    assert bad.stderr.startswith(f"{tmp_path} can't be read: ")
    assert "Traceback" not in bad.stderr


def test_the_metadata_say_what_the_file_is(calibrated_file: tuple[Path, Classifier[Any], Any]) -> None:
    path, classifier, calibration = calibrated_file
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    facts = json.loads(session.get_modelmeta().custom_metadata_map["poise"])
    assert facts["labels"] == LABELS
    assert facts["fingerprint"] == conditions_of(classifier).fingerprint
    assert facts["image"]["size"] == classifier.encoder.image.size
    assert facts["conditions"]["template"] == "a photo of a {}."
    assert (facts["method"], facts["coverage"], facts["max_error"]) == ("zero-shot", 0.8, 0.2)
    assert facts["calibration"]["images"] == sorted(calibration.images)
    assert "at most 20 %" in facts["guarantee"]


def test_calibration_images_are_refused_by_a_reopened_file(calibrated_file: tuple[Path, Any, Any]) -> None:
    path, *_ = calibrated_file
    with pytest.raises(PoiseError, match="one of the calibration images"):
        open_onnx(path)(images(1, seed=1)[0])


@pytest.mark.parametrize("method", ["zero", pytest.param("mta", marks=pytest.mark.slow)])
def test_rules_over_views(method: str, tmp_path: Path) -> None:
    classifier = Classifier(LABELS, model="tiny", method=method, views=6, seed=3, device="cpu")
    export_onnx(classifier, tmp_path / "rule.onnx")
    wanted = classifier.predict_proba(images(5))
    np.testing.assert_allclose(open_onnx(tmp_path / "rule.onnx").predict_proba(images(5)), wanted, atol=1e-4)
    views = np.stack([view.numpy() for view in classifier.predictor.views(images(5))])
    session = onnxruntime.InferenceSession(tmp_path / "rule.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(["probabilities"], {"views": views})[0], wanted, atol=1e-4)  # batch of 5
    done = subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "rule.onnx"), "x.png"], capture_output=True)
    assert b"needs 6 views" in done.stderr


SAVED: dict[str, Callable[[Path], Any]] = {
    "local-dir:rn": lambda folder: save_open_clip("rn", folder),
    "local-dir:timm": lambda folder: save_open_clip("timm", folder),
    "local-dir:siglip": lambda folder: save_open_clip("siglip", folder),
    "transformers:clip": save_clip,
    "transformers:siglip": save_siglip,
}


@pytest.mark.parametrize(
    "name",
    [
        "transformers:clip",
        *(pytest.param(name, marks=pytest.mark.slow) for name in SAVED if name != "transformers:clip"),
    ],
)
def test_towers_of_other_libraries(name: str, tmp_path: Path) -> None:
    scheme, _, kind = name.partition(":")
    SAVED[name](tmp_path / kind)
    encoder = load_model(f"{scheme}:{tmp_path / kind}", device="cpu")
    classifier = Classifier(LABELS, encoder, "zero-shot")
    export_onnx(classifier, tmp_path / "x.onnx")
    found = open_onnx(tmp_path / "x.onnx").predict_proba(images(3))
    np.testing.assert_allclose(found, classifier.predict_proba(images(3)), atol=1e-4)


@pytest.mark.slow
def test_a_tower_that_depends_on_the_aspect_ratio_is_refused(tmp_path: Path) -> None:
    save_siglip(tmp_path / "siglip2", version=2)
    classifier = Classifier(LABELS, load_model(f"transformers:{tmp_path / 'siglip2'}", device="cpu"), "zero-shot")
    with pytest.raises(InvalidOptionError, match="depends on the aspect ratio"):
        export_onnx(classifier, tmp_path / "x.onnx")


CALIBRATORS = [
    Calibrator((Curve(1.0, 0.3),)),
    Calibrator((Curve(1.0, 4.0),)),
    Calibrator((Curve(1.0, 2.0, 1.5, 2.0, 0.3),)),
    Calibrator((Curve(1.0, 1.0, 0.0, 0.0, -3.0),)),
    Calibrator((Curve(0.5), Curve(0.25, 2.0, 0.7, 0.7, -0.3), Curve(0.25, 2.0, 1.2, 1.2, 0.4))),
]


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_calibrators_in_the_graph_equal_the_reference(calibrator: Any) -> None:
    logits = torch.randn(200, 7, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.1, 20, 200)[:, None]
    probs = logits.softmax(-1)
    found = calibrated(calibrator, probs).double().numpy()
    np.testing.assert_allclose(found, calibrator.apply(probs.double().numpy()), atol=1e-5)


def test_the_command_line_exports_and_classifies(tmp_path: Path) -> None:
    Image.fromarray(images(1)[0]).save(tmp_path / "a.png")
    run, file = CliRunner(), str(tmp_path / "c.onnx")
    done = run.invoke(app, ["export", "onnx", "--model", "tiny", "--labels", "cat,dog", "--out", file])
    assert done.exit_code == 0, done.output
    shown = run.invoke(app, ["classify", str(tmp_path / "a.png"), "--model", f"onnx:{file}", "--format", "json"])
    assert shown.exit_code == 0, shown.output
    expected = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu")(tmp_path / "a.png")
    (row,) = json.loads(shown.output)
    assert row["method"] == "zero-shot"
    assert row["probabilities"] == pytest.approx(expected.probabilities, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "kld+cats"}, "needs gradients"),
        ({"method": "zero-shot | sals"}, "post-hoc"),
        ({"method": ["zero-shot", "zero"]}, "2 methods"),
        ({"method": "zero-shot", "dtype": "float64"}, "can't be exported"),
    ],
)
def test_what_cannot_be_exported_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        export_onnx(Classifier(LABELS, model="tiny", views=4, **{"device": "cpu", **options}), tmp_path / "x.onnx")


def test_other_labels_templates_and_tuning_are_refused(calibrated_file: tuple[Path, Any, Any]) -> None:
    path, *_ = calibrated_file
    encoder = load_model(f"onnx:{path}", device="cpu")
    for options, message in (
        ({"labels": ["cat", "bird"]}, "no text feature for the label 'bird'"),
        ({"labels": LABELS, "template": "a {}"}, "no text feature for the template"),
        ({"labels": LABELS, "method": "tpt"}, "no text tower"),
    ):
        with pytest.raises(InvalidOptionError, match=message):
            Classifier(**{"method": "zero-shot", **options}, model=encoder)(images(1))


def _external(model: Any) -> None:
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../../etc/passwd"


def _control_flow(model: Any) -> None:
    inner = onnx.helper.make_graph([], "inner", [], [])
    model.graph.node.append(onnx.helper.make_node("Loop", ["a", "b"], ["c"], body=inner))


def _metadata(key: str, value: object) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        facts = json.loads(model.metadata_props[0].value)
        facts[key] = value
        model.metadata_props[0].value = json.dumps(facts)

    return change


def _sealed(change: Callable[[Any], None]) -> Callable[[Any], None]:
    """A change by somebody who also writes the hash again."""

    def both(model: Any) -> None:
        change(model)
        words = {entry.key: entry for entry in model.metadata_props}
        words["poise.sha256"].value = seal(model, words["poise"].value)

    return both


def _weights(model: Any) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.data_type == 1 and len(tensor.raw_data) > 400)
    tensor.raw_data = tensor.raw_data[::-1][:-3] + tensor.raw_data[:3]


def _reversed_texts(model: Any) -> None:
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "text_features")
    features = onnx.numpy_helper.to_array(tensor)[::-1].copy()
    tensor.CopyFrom(onnx.numpy_helper.from_array(features, "text_features"))


def _huge(model: Any) -> None:
    shape = onnx.numpy_helper.from_array(np.array([2**20, 2**20]), "huge_shape")
    model.graph.initializer.append(shape)
    model.graph.node.append(onnx.helper.make_node("ConstantOfShape", ["huge_shape"], ["huge"]))


def _other_size(model: Any) -> None:
    facts = json.loads(model.metadata_props[0].value)
    facts["image"]["size"] = 512
    model.metadata_props[0].value = json.dumps(facts)


HOSTILE: dict[str, tuple[Callable[[Any], None], str]] = {
    "external": (_external, "in other files"),
    "loop": (_control_flow, "control flow"),
    "domain": (lambda model: setattr(model.graph.node[0], "domain", "evil"), "of the domain 'evil'"),
    "no metadata": (lambda model: model.ClearField("metadata_props"), "an object"),
    "huge image": (_sealed(_metadata("image", {"size": 10**9})), "image"),
    "views": (_sealed(_metadata("views", 10**9)), "views"),
    "scale": (_sealed(_metadata("scale", "1e999")), "scale"),
    "labels": (_sealed(_metadata("labels", ["cat"])), "one finite text feature per label"),
    "labels of conditions": (_sealed(_metadata("labels", ["a", "b", "c"])), "differ"),
    "conditions": (_sealed(_metadata("conditions", {})), "refused"),
    "calibration": (_sealed(_metadata("calibration", {"format": "poise-calibration/1"})), "refused"),
    "unknown key": (_sealed(_metadata("code", "import os")), "unknown key"),
    "other weights": (_weights, "not those that it was written with"),
    "reversed texts": (_reversed_texts, "not those that it was written with"),
    "threshold": (_metadata("threshold", 0.01), "not those that it was written with"),
    "no seal": (lambda model: model.metadata_props.pop(), "not those that it was written with"),
    "huge tensor": (_sealed(_huge), "makes a tensor of more than"),
    "other size": (_sealed(_other_size), "does not read 1 views of 512"),
    "earlier format": (_metadata("format", "poise-onnx/1"), "export it again"),
    "settings": (_sealed(_metadata("settings", {"name": "zero-shot"})), "other settings"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(kind: str, calibrated_file: tuple[Path, Any, Any], tmp_path: Path) -> None:
    path, *_ = calibrated_file
    change, message = HOSTILE[kind]
    model = onnx.load(path)
    change(model)
    (tmp_path / "hostile.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidCheckpointError, match=message):
        open_onnx(tmp_path / "hostile.onnx")


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"GIF89a", b"\xff" * 1000])
def test_files_of_other_formats_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(content)
    with pytest.raises(InvalidCheckpointError):
        open_onnx(tmp_path / "other.onnx")
    with pytest.raises(PoiseError, match=r"can't be read|not a regular file"):
        open_onnx(tmp_path)
