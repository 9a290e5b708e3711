"""NaN at any stage ends in a flagged zero-shot answer or in a failure, for that image alone, and never in a number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from poise import methods
from poise.adamw import AdamW
from poise.backbones import load_model
from poise.calibration import Calibrator, Curve
from poise.encoding.class_texts import ClassTexts
from poise.inference.predictor import Predictor
from poise.loading.prepare import Preparer
from poise.posthoc.sals import RangeScaling
from poise.prompts import tokenise
from poise.results import Failure
from poise.rules.mta import RobustMean
from poise.tuning import make_tuner
from poise.tuning.loop import Problem
from poise.views import ViewRecipe

METHODS = ["zero-shot", "tpt", "kld+cats", "tpt | sals", "mta"]
NAN = float("nan")


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def images():
    return list(np.random.default_rng(0).integers(0, 256, (3, 40, 40, 3), dtype=np.uint8))


def answers(encoder, images):
    tuner = make_tuner(encoder, tokenise(encoder, ["cat", "dog", "fish"]), [methods.get(name) for name in METHODS])
    return list(Predictor(encoder, tuner, ViewRecipe(views=8), batch_size=3).run(images))


@pytest.fixture(scope="module")
def sound(encoder, images):
    return answers(encoder, images)


def poisoned(tensor, row=1, *rest):
    tensor = tensor.clone()
    tensor[(row, *rest) if len(tensor) == 3 else (slice(None), *rest)] = NAN  # of the second image, or of all
    return tensor


def after(work, change):
    def changed(*arguments, **options):
        return change(work(*arguments, **options))

    return changed


def loss(pair):
    return poisoned(pair[0]), pair[1]


def gradient(prompt):
    return type(prompt)(**{name: poisoned(part) for name, part in prompt.parts().items()})


STAGES = {
    "views, plain": (Preparer, "views", lambda views: poisoned(views, 1, 0)),
    "views, augmented": (Preparer, "views", lambda views: poisoned(views, 1, 5)),
    "loss": (Problem, "differentiate", loss),
    "gradient": (ClassTexts, "pullback_to_init", gradient),
    "post-hoc step": (RangeScaling, "__call__", poisoned),
    "text features": (ClassTexts, "features", lambda features: features * NAN if len(features) > 1 else features),
}


@pytest.mark.parametrize("stage", STAGES)
def test_nan_never_becomes_a_number(encoder, images, sound, monkeypatch, stage) -> None:
    owner, name, change = STAGES[stage]
    monkeypatch.setattr(owner, name, after(getattr(owner, name), change))
    check(answers(encoder, images), sound, one_image=stage.startswith("views"))


@pytest.mark.parametrize("view", [0, 5])
def test_nan_in_image_features(encoder, images, sound, monkeypatch, view) -> None:
    work = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", after(work, lambda features: poisoned(features, 1, view)))
    check(answers(encoder, images), sound, one_image=True)


def test_nan_in_the_state_of_the_optimiser(encoder, images, sound, monkeypatch) -> None:
    step = AdamW.step

    def broken(self, parameters, gradient):
        mean = {name: torch.full_like(part, NAN) for name, part in gradient.parts().items()}
        return step(replace(self, mean=mean), parameters, gradient)

    monkeypatch.setattr(AdamW, "step", broken)
    check(answers(encoder, images), sound, one_image=False)


def test_nan_in_the_answer_of_a_rule(encoder, images, sound, monkeypatch) -> None:
    work = RobustMean.__call__

    def broken(self, out, head):
        answer = work(self, out, head)
        return replace(answer, logits=poisoned(answer.logits))

    monkeypatch.setattr(RobustMean, "__call__", broken)
    check(answers(encoder, images), sound, one_image=True)


def check(outcomes, sound, *, one_image):
    flagged = 0
    for at, (outcome, fine) in enumerate(zip(outcomes, sound, strict=True)):
        if isinstance(outcome, Failure):
            assert outcome.code == "non_finite"
            assert at == 1 or not one_image
            flagged += 1
            continue
        for name, answer in outcome.items():
            assert np.isfinite(answer.probs).all()
            assert abs(answer.probs.sum() - 1) < 1e-5
            if answer.fallback:
                flagged += 1
                np.testing.assert_allclose(answer.probs, fine["zero-shot"].probs, atol=1e-6)
            elif not one_image or at != 1:
                np.testing.assert_allclose(answer.probs, fine[name].probs, atol=1e-5)
    assert flagged > 0


def test_a_method_answers_alone_as_it_does_with_others(encoder, images, sound) -> None:
    """Methods of one run share views and passes of the text tower; the answers differ by rounding at most."""
    for name in METHODS:
        tuner = make_tuner(encoder, tokenise(encoder, ["cat", "dog", "fish"]), [methods.get(name)])
        alone = Predictor(encoder, tuner, ViewRecipe(views=8), batch_size=3).run(images)
        for outcome, shared in zip(alone, sound, strict=True):
            np.testing.assert_allclose(outcome[name].probs, shared[name].probs, atol=1e-5)


@pytest.mark.parametrize("calibrator", [Calibrator((Curve(1.0, 2.0),)), Calibrator((Curve(1.0, 1.0, 0.5, 0.5, 0.5),))])
@pytest.mark.parametrize("value", [NAN, float("inf"), -1.0])
def test_nan_is_not_calibrated(calibrator, value) -> None:
    with pytest.raises(ValueError, match="probabilit"):
        calibrator.apply([[0.5, 0.5], [value, 0.5]])
