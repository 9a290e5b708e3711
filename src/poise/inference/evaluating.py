"""Runs a calibrated classifier over labelled images that it was not calibrated on."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.calibration import Tree
from poise.calibration.evaluation import Answered, Evaluation
from poise.errors import CalibrationImageError, InvalidCalibrationError, InvalidOptionError
from poise.inference.calibrating import check_images
from poise.inference.guarantees import LIKE_KNOWN
from poise.loading.sources import PlannedImage, read_planned
from poise.results import Failure, Result, Results
from poise.text import counted
from poise.views.recipe import ViewRecipe

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier

USED = "that the calibration was made with"
UNREADABLE = "without an answer"


def evaluate(
    classifier: Classifier[Any],
    images: Sequence[Any],
    labels: Sequence[str],
    *,
    threshold: float | None = None,
    unlabelled: Sequence[Any] = (),
    watched: Callable[[Iterator[Any], int], Iterator[Any]] = lambda outcomes, total: outcomes,
) -> Evaluation:
    """Evaluate a classifier; see `Classifier.evaluate`."""
    if classifier.guarantees is None:
        raise InvalidOptionError(
            "The classifier has no calibration.", hint="Use Classifier(labels, calibration=...), or calibrate it."
        )
    certificates = classifier.guarantees.certificates
    if threshold is not None and certificates:
        raise InvalidOptionError(
            "A threshold and a largest error both decide what is answered.", hint="Give one of them."
        )
    truth = check_images(classifier.labels, labels)
    if len(images) != len(truth):
        raise InvalidOptionError(
            f"{counted(len(images), 'image')} and {counted(len(truth), 'label')} were given.",
            hint="Give one label per image.",
        )
    check_unseen(classifier.guarantees.images, images, classifier.read_recipe())
    found: list[tuple[Results, int]] = []
    failures: list[Failure] = []
    for outcome, label in zip(watched(classifier.each(images), len(images)), truth, strict=True):
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            found.append((outcome, label))
    left_out, unreadable = sorted_out(failures)
    if not found:
        raise none_left(left_out, unreadable)
    guarantees, methods = classifier.guarantees, {}
    others = [each for each in classifier.each(unlabelled) if not isinstance(each, Failure)]
    for name in (method.name for method in classifier.methods):
        rows = [(row[name] if threshold is None else row[name].decided_at(threshold), at) for row, at in found]
        part = _answered(rows, classifier.labels, classifier.tree)
        if len(unlabelled):
            part = replace(part, unlabelled=np.array([row[name].confidence for row in others]))
        methods[name] = part
    return Evaluation(
        methods=methods,
        coverage=guarantees.coverage,
        max_error=next((row.max_error for row in certificates.values()), None),
        confidence=guarantees.confidence,
        left_out=left_out,
        labels=classifier.labels,
        sources=tuple(next(iter(row.values())).source for row, _ in found),
        failures=unreadable,
        copies=sum(LIKE_KNOWN in next(iter(row.values())).notes for row in [*(row for row, _ in found), *others]),
    )


def check_unseen(known: Container[str], images: Sequence[Any], recipe: ViewRecipe) -> None:
    """Refuse images that are all calibration images before one is encoded; the first other one ends the reading."""
    read = (read_planned(image, recipe) for image in images)
    if len(images) and all(isinstance(image, PlannedImage) and image.key in known for image in read):
        raise none_left({USED: len(images)})


def sorted_out(failures: Sequence[Failure]) -> tuple[dict[str, int], tuple[Failure, ...]]:
    """Return how many images are left out for each reason, and those without an answer."""
    unreadable = tuple(each for each in failures if each.code != CalibrationImageError.code)
    return {USED: len(failures) - len(unreadable), UNREADABLE: len(unreadable)}, unreadable


def none_left(left_out: Mapping[str, int], unreadable: Sequence[Failure] = ()) -> InvalidCalibrationError:
    """Return the error of an evaluation that leaves all images out, with how many for each reason, and an example."""
    reasons = "; ".join(f"{number} {reason}" for reason, number in left_out.items() if number)
    reasons += f", such as {unreadable[0].source}: {unreadable[0].message.rstrip('.')}" if unreadable else ""
    return InvalidCalibrationError(
        f"None of {counted(sum(left_out.values()), 'image')} can be used: {reasons}.",
        hint="Give labelled images that `poise calibrate` has not seen.",
    )


def _answered(rows: Sequence[tuple[Result, int]], labels: Sequence[str], tree: Tree | None) -> Answered:
    """Return one method's answers as arrays; ``rows`` have the class of each image."""
    results, truth = [result for result, _ in rows], np.array([at for _, at in rows], dtype=np.int64)
    if tree is None:
        right = [{label} for label in labels]
    else:
        right = [{tree.names[node] for node in line} for line in tree.lines]
    added: dict[str, Any] = {}
    if all(result.prediction_set is not None for result in results):
        added |= _sets([(result.prediction_set or (), right[at]) for result, at in rows])
    decided = all(result.decision is not None for result in results)
    if decided:
        added["answered"] = np.array([result.decision == "answer" for result in results])
    if tree is not None:
        predicted = np.array([labels.index(result.rejected or result.label) for result in results])
        added["height"] = tree.heights(predicted, truth)
    if tree is not None and decided:
        added["depth"] = np.array([result.depth for result in results])
        added["right"] = np.array([result.node in right[at] for result, at in rows])
    return Answered(
        probs=np.array([[result.probabilities[label] for label in labels] for result in results]),
        raw=np.array([result.raw_confidence for result in results]),
        labels=truth,
        **added,
    )


def _sets(rows: Sequence[tuple[Sequence[str], Container[str]]]) -> dict[str, Any]:
    """Return the sizes of prediction sets, and whether they contain something that is right."""
    return {
        "set_sizes": np.array([len(members) for members, _ in rows]),
        "covered": np.array([any(name in right for name in members) for members, right in rows]),
    }
