"""The image tower in OpenVINO gives torch's features, and is refused where it does not work."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from poise import Classifier, load_model
from poise.backbones.fingerprint import fingerprint
from poise.backbones.vision import openvino_tower
from poise.errors import InvalidOptionError, MissingDependencyError
from poise.evaluate.config import RunConfig
from poise.evaluate.resolve import resolve
from poise.export import export_onnx
from poise.types import DualEncoder
from tests.backbones.saved import save_clip, save_open_clip, save_siglip

needs_openvino = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino (extra 'openvino') is not installed"
)


@pytest.fixture
def views() -> torch.Tensor:
    return torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def tiny() -> DualEncoder:
    return load_model("tiny", device="openvino")


def _side(views: torch.Tensor, side: int) -> torch.Tensor:
    return torch.nn.functional.interpolate(views.flatten(0, 1), side).unflatten(0, views.shape[:2])


@needs_openvino
@pytest.mark.parametrize(
    ("save", "scheme"),
    [
        (lambda folder: save_open_clip("rn", folder), "local-dir"),
        pytest.param(save_clip, "transformers", marks=pytest.mark.slow),  # a ViT, as `tiny` is
        (save_siglip, "transformers"),
    ],
)
def test_features_are_those_of_torch(
    save: Callable[[Path], Any], scheme: str, views: torch.Tensor, tmp_path: Path
) -> None:
    save(tmp_path)
    name = f"{scheme}:{tmp_path}"
    exact, converted = load_model(name, device="cpu", dtype="float64"), load_model(name, device="openvino")
    views = _side(views, exact.image.size)
    features = converted.encode_images(views)
    assert features.dtype == torch.float32
    assert features.shape[:2] == views.shape[:2]
    torch.testing.assert_close(features.double(), exact.encode_images(views.double()), atol=1e-5, rtol=0)
    assert fingerprint(converted) == fingerprint(load_model(name, device="cpu"))


@needs_openvino
def test_features_do_not_depend_on_other_views(tiny: DualEncoder, views: torch.Tensor) -> None:
    together = tiny.encode_images(views)
    for image in range(2):
        for view in range(3):
            alone = tiny.encode_images(views[image : image + 1, view : view + 1])
            assert torch.equal(alone[0, 0], together[image, view])


@needs_openvino
def test_a_classifier_answers_alike(tiny: DualEncoder) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (2, 40, 52, 3), np.uint8))
    answers = [
        Classifier(["cat", "dog"], model, ["zero-shot", "kld+cats"], views=4, device="cpu")(images)
        for model in ("tiny", tiny)
    ]
    for one, other in zip(*answers, strict=True):
        for method, result in one.items():
            assert result.probabilities == pytest.approx(other[method].probabilities, abs=1e-4)


@needs_openvino
def test_bfloat16_has_another_fingerprint_and_is_refused_without_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    import openvino

    encoder = None
    with contextlib.suppress(InvalidOptionError):  # this CPU has no instructions, or they are switched off
        encoder = load_model("tiny", device="openvino", dtype="bfloat16")
    if encoder is not None:
        assert fingerprint(encoder) != fingerprint(load_model("tiny", device="cpu"))
        assert encoder.dtype == torch.float32  # of the text tower
        assert repr(encoder) == "<Encoder tiny on openvino in bfloat16>"
    monkeypatch.setattr(openvino, "Core", _Core)
    with pytest.raises(InvalidOptionError, match="no instructions for bfloat16"):
        load_model("tiny", device="openvino", dtype="bfloat16")


class _Core:
    def get_property(self, *_: str) -> list[str]:
        return ["FP32"]


@needs_openvino
def test_a_tower_that_openvino_can_t_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import openvino

    def fail(*_: object) -> None:
        raise RuntimeError("Exception from node.cpp:\nno primitive for Softmax\n")

    monkeypatch.setattr(openvino.Core, "compile_model", fail)
    with pytest.raises(InvalidOptionError, match="of tiny in float32 here: no primitive"):
        load_model("tiny", device="openvino")


@needs_openvino
def test_what_openvino_computes_is_not_exported_again(tiny: DualEncoder, tmp_path: Path) -> None:
    classifier = Classifier(["cat", "dog"], tiny, "zero-shot")
    with pytest.raises(InvalidOptionError, match="can't be exported"):
        export_onnx(classifier, tmp_path / "file.onnx")


@needs_openvino
def test_a_tower_that_can_t_be_traced_is_refused() -> None:
    def forward(images: torch.Tensor) -> torch.Tensor:
        return images if images.sum().item() > 0 else images.flip(0)  # depends on values

    with pytest.raises(InvalidOptionError, match="can't be converted for OpenVINO"):
        openvino_tower.OpenVinoTower(forward, 8, "float32", "odd")


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOptionError, match=r"dtype=float64 is not accepted on openvino"):
        load_model("tiny", device="openvino", dtype="float64")
    with pytest.raises(InvalidOptionError, match=r"dtype=float8 is not accepted on openvino. Accepted there: bfloat16"):
        load_model("tiny", device="openvino", dtype="float8")
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match="openvino"):
        load_model("tiny", device="openvino")


def test_a_run_keeps_the_names_of_device_and_dtype() -> None:
    resolved = resolve(RunConfig(device="openvino", dtype="bf16", methods=("zero-shot",)))
    assert (resolved.device, resolved.dtype) == ("openvino", "bfloat16")
    assert resolve(resolved) == resolved
