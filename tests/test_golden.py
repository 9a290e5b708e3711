"""Numbers that the published TPT, C-TPT and O-TPT code, and an independent computation of the paper's own objective,
gave on a tiny CLIP in float64, equalled.

`tests/golden` holds all cases, on two of their four images; a folder with the other images, or other numbers of the
same kind, is tried as well where there is one ($POISE_VECTORS, or `shared/vectors` beside the repository).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from poise import methods
from poise.adamw import AdamW
from poise.backbones import load_model
from poise.objectives import Dispersion, Entropy, Orthogonality, select_views
from poise.prompts import tokenise
from poise.tuning import Tuner
from poise.types import Outputs

GOLDEN = Path(__file__).parent / "golden"
ALL = Path(os.environ.get("POISE_VECTORS", Path(__file__).parents[2] / "shared" / "vectors"))
FOLDERS = [
    GOLDEN,
    pytest.param(
        ALL,
        marks=[
            pytest.mark.data,
            pytest.mark.skipif(not ALL.is_dir(), reason=f"{ALL}: more images of the cases in tests/golden"),
        ],
    ),
]


def cases(folder: Path) -> dict:
    return json.loads((folder / "vectors.json").read_text())


@pytest.mark.parametrize("folder", FOLDERS)
def test_adaptation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, step_of = [], AdamW.step
    monkeypatch.setattr(AdamW, "step", lambda self, at, by: gradients.append(by) or step_of(self, at, by))
    stored, tensors = cases(folder), load_file(folder / "vectors.safetensors")
    encoder = load_model(f"local-dir:{folder / 'model'}", device="cpu", dtype="float64")
    assert encoder.scale == pytest.approx(stored["logit_scale_exp"], rel=1e-12)
    features = encoder.encode_images(tensors["views"].double())
    for case in stored["cases"]:
        names = ("steps", "lr", "selection", "weight_decay", *(["weight"] if case["weight"] else []))
        options = {name: case[name] for name in names}
        method = methods.get(case["method"], **options)
        tuner = Tuner(encoder, tokenise(encoder, case["labels"], case["template"]), [method])
        gradients.clear()
        answer = tuner.predict(features)[method.name]
        reference = encoder.logits(features, tuner.texts.init_features())
        assert not answer.fallback.any()
        for image, expected in enumerate(case["images"]):
            key = f"{case['name']}/{image}"
            assert answer.selected[image].tolist() == expected["selected"], key
            assert answer.losses[image].tolist() == pytest.approx(expected["loss"], abs=1e-9), key
            assert answer.init_probs[image].tolist() == pytest.approx(expected["zero_shot"], abs=1e-10), key
            assert answer.probs[image].tolist() == pytest.approx(expected["adapted"], abs=1e-6), key
            if f"{key}/logits" in tensors:
                torch.testing.assert_close(reference[image].float(), tensors[f"{key}/logits"], atol=1e-5, rtol=1e-5)
            for step, gradient in enumerate(gradients):
                wanted = tensors[f"{key}/gradient"][step].double()
                error = (gradient.context[image] - wanted).norm() / wanted.norm()
                assert error < 1e-5, f"{key} step {step}: {error}"
            torch.testing.assert_close(
                answer.prompt.context[image].float(), tensors[f"{key}/context"], atol=1e-5, rtol=0
            )


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_papers_objective(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """{divergence, entropy} x {plain, CATS}, selection 0.1 and 1.0, gradients through the temperature or not."""
    gradients, step_of = [], AdamW.step
    monkeypatch.setattr(AdamW, "step", lambda self, at, by: gradients.append(by) or step_of(self, at, by))
    encoder = load_model(f"local-dir:{folder / 'model'}", device="cpu", dtype="float64")
    features = encoder.encode_images(load_file(folder / "vectors.safetensors")["views"].double())
    names = {("divergence", False): "kld", ("divergence", True): "kld+cats", ("entropy", True): "tpt+cats"}
    for case in json.loads((folder / "paper.json").read_text()):
        options = {name: case[name] for name in ("selection", "steps")}
        options |= {"detach_temperature": case["detach_temperature"]} if case["cats"] else {}
        method = methods.get(names[case["loss"], case["cats"]], **options)
        gradients.clear()
        answer = Tuner(encoder, tokenise(encoder, case["labels"]), [method]).predict(features)[method.name]
        for image, expected in enumerate(case["images"][: len(features)]):
            key = f"{method.describe()}, {len(case['labels'])} labels, image {image}"
            norms = [gradient.context[image].norm().item() for gradient in gradients]
            assert sorted(answer.selected[image].tolist()) == expected["selected"], key
            assert answer.losses[image].tolist() == pytest.approx(expected["loss"], abs=1e-9), key
            assert norms == pytest.approx(expected["grad_norm"], rel=1e-6, abs=1e-9), key
            assert answer.init_probs[image].tolist() == pytest.approx(expected["zero_shot"], abs=1e-10), key
            assert answer.probs[image].tolist() == pytest.approx(expected["adapted"], abs=1e-6), key


@pytest.mark.parametrize("folder", FOLDERS)
def test_terms(folder: Path) -> None:
    stored, tensors = cases(folder), load_file(folder / "vectors.safetensors")
    for term in stored["terms"]:
        key = f"terms/{term['classes']}"
        logits = tensors[f"{key}/logits"].double()[None].requires_grad_()
        texts = tensors[f"{key}/text_features"].double()[None].requires_grad_()
        out = Outputs(torch.zeros(1), texts, logits, logits.detach())
        assert sorted(select_views(logits.detach(), 0.1)[0].tolist()) == sorted(term["selected"])
        for name, objective, source in (
            ("entropy", Entropy(), logits),
            ("dispersion", Dispersion(), texts),
            ("orthogonality", Orthogonality(), texts),
        ):
            value = objective(out)
            expected = term.get(name, term.get(f"{name}_term"))
            assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-9), f"{key} {name}"
            (gradient,) = torch.autograd.grad(value.sum(), source)
            wanted = tensors[f"{key}/{name}_gradient"].double()
            # A gradient may be zero up to rounding, as the dispersion's is for classes of one text.
            assert (gradient[0] - wanted).norm() <= 1e-5 * wanted.norm() + 1e-9, f"{key} {name}"
