"""What a calibration adds to an answer: calibrated probabilities, prediction sets, and whether to answer at all."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.backbones.fingerprint import fingerprint
from poise.backbones.load import is_downloaded
from poise.calibration import Calibration, Certificate, Conditions, MethodCalibration, Tree
from poise.calibration.certify import in_words
from poise.calibration.feasible import certified, check_coverage
from poise.calibration.independent import IndependentCalibration, read_calibration
from poise.errors import InvalidCalibrationError
from poise.images.look import Looks
from poise.methods import Method
from poise.metrics.sample import Floats
from poise.options import AnswerOptions, option_values
from poise.types import Prompt

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier

LIKE_KNOWN = "it looks like one of the calibration images, resized or encoded again; no guarantee holds for these"
KNOWN_IMAGE = "This is one of the calibration images, for which no guarantee holds. Classify it without calibration."


def trusted_options(calibration: Calibration | IndependentCalibration, given: Container[str]) -> dict[str, Any]:
    """Return the options of a calibration, which may come from anybody and so never decides what is contacted.

    Args:
        calibration: the calibration.
        given: names of the options that the user gave.

    Raises:
        InvalidCalibrationError: Its model would be downloaded, and the user did not name the model.
    """
    options = calibration.options()
    if "model" not in given and is_downloaded(options["model"]):
        raise InvalidCalibrationError(
            f"The calibration was made with the model '{options['model']}', which would be downloaded.",
            hint="Name the model yourself if you want that: --model NAME, or model=NAME in Python.",
        )
    return options


@dataclass(frozen=True, eq=False)
class CalibratedAnswer:
    """One method's answer for one image under a calibration."""

    part: MethodCalibration
    labels: tuple[str, ...]
    probs: Floats  # [C] before calibration
    u: float  # of the image, for scores that break ties at random
    tree: Tree | None = None

    def set_at(self, coverage: float, score: str = "lac", per_class: bool = False) -> tuple[tuple[str, ...], bool]:
        """Return the labels of the prediction set, most probable first, and whether it would be empty otherwise.

        Where no label is probable enough, the set contains the most probable one. With a tree, the set is written with
        the fewest nodes.
        """
        check_coverage(coverage, len(self.part.labels))
        sets = self.part.sets(self.probs[None], coverage, np.array([self.u]), score=score, per_class=per_class)
        if self.tree is not None:
            values = self.tree.probabilities(self.probs[None])[0]
            found = sorted(self.tree.smallest(sets.members[0]), key=lambda node: -values[node])
            return tuple(self.tree.names[node] for node in found), bool(sets.empty[0])
        order = np.argsort(-self.probs, kind="stable")
        return tuple(self.labels[at] for at in order if sets.members[0, at]), bool(sets.empty[0])


class Guarantees:
    """Applies a calibration to the answers of a classifier.

    Args:
        calibration: the calibration, or its file.
        conditions: what the classifier's answers depend on; they must be those of the calibration.
        methods: the classifier's methods.
        coverage: of the prediction sets; None for no sets.
        max_error: certified share of wrong answers among those given; None to answer every image.
    """

    def __init__(
        self,
        calibration: Calibration,
        conditions: Conditions,
        methods: tuple[Method, ...],
        coverage: float | None,
        max_error: float | None,
    ) -> None:
        calibration.conditions.check(conditions, reads_views=any(method.reads_views for method in methods))
        self.calibration, self.labels, self.coverage = calibration, conditions.labels, coverage
        self.images, self.looks = calibration.images, Looks(sorted(calibration.looks))
        self.confidence = calibration.confidence
        self.parts = {method.name: calibration.method(method.name, method.settings()) for method in methods}
        if coverage is not None:
            check_coverage(coverage, calibration.random)
        self.certificates: Mapping[str, Certificate] = {}
        if max_error is not None:
            self.certificates = {name: certified(name, part, max_error) for name, part in self.parts.items()}

    def notes(self, look: str) -> tuple[str, ...]:
        """Return what is to be said about an image that looks like a calibration image."""
        return () if self.looks.first_like(look) is None else (LIKE_KNOWN,)

    def answer(self, method: str, probs: Floats, key: str) -> tuple[Floats, CalibratedAnswer]:
        """Return the calibrated probabilities [C] of an image, and what sets are made from."""
        part = self.parts[method]
        return part.calibrator.apply(probs[None])[0], CalibratedAnswer(
            part, self.labels, probs, uniform(key), self.calibration.tree
        )

    def decision(self, method: str, probs: Floats) -> dict[str, Any]:
        """Return the fields of a `Result` that say whether to answer."""
        if method not in self.certificates:
            return {}
        certificate, tree = self.certificates[method], self.calibration.tree
        assert certificate.threshold is not None
        added: dict[str, Any] = {}
        answered = bool(probs.max() >= certificate.threshold)
        if tree is not None:
            found = tree.descend(probs[None])
            depth = int(found.depth_at(certificate.threshold)[0])
            answered = depth > 0
            added = {"node": tree.names[found.nodes[0, depth - 1]] if answered else None, "depth": depth}
        return {
            **added,
            "decision": "answer" if answered else "abstain",
            "threshold": certificate.threshold,
            "guarantee": in_words(certificate.max_error, self.confidence, tree is not None),
        }


def conditions_of(classifier: Classifier[Any], like: str = "") -> Conditions:
    """Return what a classifier's answers depend on beside the image and the method.

    Args:
        classifier: the classifier.
        like: a stored fingerprint; that of the model is computed in its version.
    """
    chosen, texts = classifier.options, classifier.tuner.texts
    answers = {**option_values(chosen, AnswerOptions), "template": texts.classes.template}
    init_hash = "" if chosen.init == "template" else hash_prompt(texts.init)
    return Conditions(**answers, fingerprint=fingerprint(classifier.encoder, like), init_hash=init_hash)


def read(calibration: str | Path | Calibration | IndependentCalibration) -> Any:
    """Return the calibration, of either kind, which may be in a file."""
    if isinstance(calibration, Calibration | IndependentCalibration):
        return calibration
    return read_calibration(calibration)


def hash_prompt(prompt: Prompt) -> str:
    """Return a hash of a prompt's values, rounded to float16."""
    state = hashlib.sha256()
    for name, part in prompt.parts().items():
        state.update(name.encode() + part.half().cpu().contiguous().numpy().tobytes())
    return state.hexdigest()[:16]


def uniform(key: str) -> float:
    """Return a number in [0, 1) that depends on the image's pixels only."""
    return int.from_bytes(hashlib.sha256(f"u {key}".encode()).digest()[:6], "big") / 2**48
