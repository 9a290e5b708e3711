"""Which images to label, and that certificates and sets of such labels hold."""

from __future__ import annotations

import numpy as np
import pytest

from poise.calibration import calibrate_probabilities, certify, plan_labels
from poise.calibration.assess import Answers, assess
from poise.calibration.plan import Drawn
from poise.calibration.stored import Calibration
from poise.errors import InvalidOptionError

WORLDS = {  # error rate by confidence in [0, 1]; the level is 0.2
    "falling": lambda c: 0.6 * (1 - c),
    "rising": lambda c: 0.05 + 0.3 * c,
    "bump": lambda c: np.where((c > 0.6) & (c < 0.8), 0.5, 0.1),
    "constant": lambda c: np.full_like(c, 0.201),
}


def draw(world: str, images: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    confidence = generator.random(images)
    return confidence, generator.random(images) >= WORLDS[world](confidence)


def error_above(world: str, threshold: float) -> float:
    return float(WORLDS[world](np.linspace(threshold, 1, 2001)).mean())


def test_a_plan_draws_different_images_and_those_above_the_cut_off() -> None:
    confidence = np.random.default_rng(0).random(500)
    plan = plan_labels(confidence, 80, max_error=0.2, seed=3)
    both = np.concatenate([plan.random, plan.above])
    assert len({*both.tolist()}) == len(plan) == 80
    assert len(plan.random) == 24
    assert (confidence[plan.above] > plan.cutoff).all()
    assert plan.share == pytest.approx((confidence > plan.cutoff).mean())
    assert plan_labels(confidence, 80, max_error=0.2, seed=3).above.tolist() == plan.above.tolist()
    assert plan_labels(confidence, 80, max_error=0.2, seed=4).random.tolist() != plan.random.tolist()
    everything = plan_labels(confidence, 80)
    assert (len(everything.random), len(everything.above), everything.cutoff) == (80, 0, None)


def test_sure_and_calibrated_models_can_expect_a_certificate() -> None:
    confidence = np.random.default_rng(0).beta(5, 1, 1000)
    first, *_, last = plan_labels(confidence, 100, max_error=0.1).expected
    assert first.certified > first.alone + 0.1
    assert first.certified > 0.4
    assert last.certified < 0.05


@pytest.mark.parametrize("world", WORLDS)
def test_wrong_certificates_are_rare(world: str) -> None:
    """A plan's cut-off depends on the confidences of its own pool, and the certificate holds all the same."""
    generator, draws, wrong = np.random.default_rng(len(world)), 250, 0
    for number in range(draws):
        confidence, correct = draw(world, 300, generator)
        if number % 50 == 0:  # what is best for one pool is for the next one, too
            plan = plan_labels(confidence, 60, max_error=0.2, confidence=0.8, seed=number)
        order = generator.permutation(300)
        cutoff = np.sort(confidence)[300 - round(plan.share * 300) - 1]
        rest = order[18:]
        labelled = np.concatenate([order[:18], rest[confidence[rest] > cutoff][:42]])
        labelled = labelled[confidence[labelled] > cutoff]
        threshold = certify(confidence[labelled], correct[labelled], 0.2, delta=0.2).threshold
        wrong += threshold is not None and error_above(world, threshold) > 0.2 + 1e-3
    assert wrong / draws <= 0.2 + 4 * np.sqrt(0.2 * 0.8 / draws)


def made(seed: int, images: int = 400) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet([0.2, 0.2, 0.2], images)
    return probs, np.array([generator.choice(3, p=row) for row in probs])


def test_a_calibration_uses_each_part_for_what_it_is(tmp_path) -> None:
    probs, truth = made(0)
    plan = plan_labels(probs.max(1), 100, max_error=0.1)
    listed = np.concatenate([plan.random, plan.above])
    above = np.arange(100) >= len(plan.random)
    conditions = calibrate_probabilities(probs[:50], truth[:50]).conditions
    made_with = assess(
        conditions,
        {"given": Answers({}, probs[listed])},
        truth[listed],
        np.random.default_rng(0).random(100),
        [str(at) for at in listed],
        delta=0.05,
        drawn=Drawn(above, plan.cutoff, probs[listed].max(1)),
    )
    made_with.save(tmp_path / "c.json")
    found = Calibration.load(tmp_path / "c.json")
    (part,) = found.methods.values()
    assert (len(found), found.random, len(part)) == (100, 30, 100)
    alone = calibrate_probabilities(probs[plan.random], truth[plan.random])
    assert part.calibrator == alone.methods["given"].calibrator  # from the random part only
    assert part.scores["lac"].tolist() == alone.methods["given"].scores["lac"].tolist()
    kept = listed[probs[listed].max(1) > plan.cutoff]
    certificate = part.certificate(0.1)
    assert certificate == certify(probs[kept].max(1), probs[kept].argmax(1) == truth[kept], 0.1)
    assert certificate.images > 70
    assert (certificate.threshold or 1) > plan.cutoff


@pytest.mark.parametrize(
    ("images", "settings", "words"),
    [
        (50, {"budget": 50}, "The budget is 50 labels for 50 images"),
        (500, {"budget": 20, "max_error": 0.05}, "20 labels can't certify an error of 0.05"),
        (500, {"budget": 80, "max_error": 0.2, "random": 81}, "81 images are to be drawn at random"),
        (90, {"budget": 80, "max_error": 0.2}, "too few to find 56 above a cut-off"),
    ],
)
def test_what_is_refused(images: int, settings: dict, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        plan_labels(np.linspace(0.1, 0.9, images), settings.pop("budget"), **settings)
