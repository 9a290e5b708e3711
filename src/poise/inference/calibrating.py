"""Runs a classifier over labelled images to calibrate it."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.calibration import Answers, Calibration, Drawn, assess
from poise.calibration.feasible import check_number, several, warn_if_few
from poise.calibration.levels import failure
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.images.look import Looks
from poise.inference.answers import Predictions, of_image
from poise.inference.guarantees import conditions_of, uniform
from poise.inference.heuristics import match_of
from poise.inference.option_checks import check_structure
from poise.inference.variants import only
from poise.prompts.labels import NONE_OF_THEM, listed, suggested
from poise.results import Failure
from poise.text import as_words, counted
from poise.types import Answer

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier

Watched = Callable[[Iterator[Any], int], Iterator[Any]]  # the same outcomes, with a progress bar

PLANNED = 0.05  # difference of a confidence from that of the plan; devices and dtypes differ by less
TIMED = 5  # images that each method classifies by itself, for its time per image


def unwatched(outcomes: Iterator[Any], total: int) -> Iterator[Any]:
    """Return the outcomes as they are."""
    return outcomes


def calibrate(
    classifier: Classifier[Any],
    images: Iterable[Any],
    labels: Sequence[str],
    *,
    coverage: float | Sequence[float] = (),
    max_error: float | Sequence[float] = (),
    confidence: float = 0.95,
    drawn: Drawn | None = None,
    watched: Watched = unwatched,
) -> Calibration:
    """Calibrate a classifier; see `Classifier.calibrate`."""
    names, images = [method.name for method in classifier.methods], list(images)
    check_structure(classifier.groups, (), "a calibration")
    if classifier.tuner.ordered:
        raise InvalidCalibrationError(
            f"{', '.join(names)}: answers depend on the images before.",
            hint="They are not exchangeable with those of later images, so nothing can be promised. Use a method that "
            "answers each image by itself.",
        )
    classes = check_images(classifier.labels, labels)
    if len(images) != len(classes):
        raise InvalidOptionError(
            f"{counted(len(images), 'image')} and {counted(len(classes), 'label')} were given.",
            hint="Give one label per image.",
        )
    wanted: Any = {
        "methods": len(names),
        "coverage": several(coverage),
        "max_error": several(max_error),
        "confidence": confidence,
    }
    if drawn is not None and (len(names) > 1 or len(drawn.above) != len(images)):
        raise InvalidOptionError(
            f"A plan of {counted(len(drawn.above), 'image')} was given with {counted(len(images), 'image')} and the "
            f"methods {', '.join(names)}.",
            hint="A cut-off is of one method: give the method and all images of the plan.",
        )
    if drawn is not None and classifier.tree is not None:
        raise InvalidOptionError(
            "A plan was given with a tree of labels.",
            hint="Draw images at random: a cut-off is of leaves, not of nodes.",
        )
    check_number(len(images), **wanted)
    outcomes = list(watched(classifier.predictions(images), len(images)))
    kept = list(_answered(outcomes, classes))
    found = [(predictions, label) for _, predictions, label in kept]
    if drawn is not None:
        drawn = _checked(drawn, [at for at, _, _ in kept], [predictions[names[0]] for predictions, _ in found])
    check_number(len(found), **wanted)
    random = [label for at, (_, label) in enumerate(found) if drawn is None or not drawn.above[at]]
    check_number(len(random), **{**wanted, "max_error": ()})
    warn_if_few(len(random))
    warn_of_missing(classifier.labels, random)
    readable = [image for image, outcome in zip(images, outcomes, strict=True) if not isinstance(outcome, Failure)]
    truth = np.array([label for _, label in found], dtype=np.int64)
    answers = {}
    for method in classifier.methods:
        rows = [predictions[method.name] for predictions, _ in found]
        answers[method.name] = Answers(
            method.settings(),
            np.array([prediction.probs for prediction in rows]),
            _seconds(only(classifier, method.name), readable),
            np.array([match_of(prediction.init_probs, classifier.encoder.scale) for prediction in rows]),
        )
    keys = [of_image(predictions).key for predictions, _ in found]
    noise = np.array([uniform(key) for key in keys])
    delta = failure(confidence)
    looks = [of_image(predictions).look for predictions, _ in found]
    _warn_of_copies(looks, [of_image(predictions).source for predictions, _ in found], truth.tolist())
    options: Any = {"delta": delta, "tree": classifier.tree, "drawn": drawn}
    made = assess(conditions_of(classifier), answers, truth, noise, keys, **options)
    return replace(made, looks=frozenset(filter(None, looks)))


def _checked(drawn: Drawn, kept: Sequence[int], answers: Sequence[Answer[np.ndarray]]) -> Drawn:
    """Return how the images with an answer were drawn; their confidences must be those of the plan."""
    then, now = drawn.confidence[list(kept)], np.array([answer.probs.max() for answer in answers])
    if len(now) and (far := np.abs(then - now).max()) > PLANNED:
        raise InvalidCalibrationError(
            f"Confidences differ from those of the plan by up to {far:.3f}.",
            hint="Use the model, labels, template, views and method that the plan was made with.",
        )
    return Drawn(drawn.above[list(kept)], drawn.cutoff, then)


def check_images(known: Sequence[str], labels: Iterable[str]) -> list[int]:
    """Return the class of each image's label, which must be known."""
    position = {as_words(label): at for at, label in enumerate(known)}
    given = list(labels)
    if unknown := sorted({label for label in given if as_words(label) not in position}):
        raise unknown_labels("Images have", [suggested(label, known) for label in unknown])
    return [position[as_words(label)] for label in given]


def unknown_labels(who: str, labels: Sequence[str]) -> InvalidOptionError:
    """Return the error of labels that the classifier does not have; ``labels`` are texts about each."""
    return InvalidOptionError(
        f"{who} labels that the classifier has not: {listed(labels)}.",
        hint="Correct them, or add them to the list of labels, of which some may have no image (the labels of a "
        f"calibration are fixed: calibrate again). {NONE_OF_THEM}",
    )


def warn_of_missing(known: Sequence[str], classes: Iterable[int]) -> None:
    """Warn where labels have no image, which a random sample allows; images that were added would make it another."""
    found = set(classes)
    if missing := [repr(label) for at, label in enumerate(known) if at not in found]:
        warnings.warn(
            f"{len(missing)} of {len(known)} labels have no image: {listed(missing)}. In a random sample that is no "
            "fault: promises hold on average over images drawn like these. Nothing is known about images of these "
            "labels by themselves. Do not add images to fill the gap",
            stacklevel=4,
        )


def _answered(
    outcomes: Iterable[Predictions | Failure], classes: Sequence[int]
) -> Iterator[tuple[int, Predictions, int]]:
    """Yield position, answers and class. Images without an answer, and copies of an image, are left out."""
    seen: dict[str, tuple[str, int]] = {}
    for at, (outcome, label) in enumerate(zip(outcomes, classes, strict=True)):
        if isinstance(outcome, Failure):
            warnings.warn(f"left out: {outcome.source}: {outcome.message}", stacklevel=4)
            continue
        image = of_image(outcome)
        if image.key not in seen:
            seen[image.key] = image.source, label
            yield at, outcome, label
            continue
        source, first = seen[image.key]
        if first != label:
            raise InvalidCalibrationError(
                f"'{source}' and '{image.source}' are the same image with different labels.",
                hint="Remove the one with the wrong label.",
            )
        warnings.warn(f"left out: {image.source} is a copy of {source}", stacklevel=4)


def _warn_of_copies(looks: Sequence[str], sources: Sequence[str], classes: Sequence[int]) -> None:
    """Warn of images that look like earlier ones; they are kept, because two photos of one scene may look alike."""
    known = Looks(looks)
    alike = [(at, first) for at, look in enumerate(looks) if (first := known.first_like(look, at)) is not None]
    pairs = {same: [pair for pair in alike if (classes[pair[0]] == classes[pair[1]]) == same] for same in (True, False)}
    advice = {
        True: "Copies are no new draws: keep one of each, unless later images repeat as often",
        False: "Their labels differ: if they are copies, one label is wrong",
    }
    for same, found in pairs.items():
        if found:
            shown = listed([f"{sources[at]} like {sources[first]}" for at, first in found])
            number = "1 image may be a copy" if len(found) == 1 else f"{len(found):,} images may be copies"
            warnings.warn(f"{number}, resized or encoded again: {shown}. {advice[same]}", stacklevel=4)


def _seconds(classifier: Classifier[Any], images: Sequence[Any]) -> list[float]:
    """Return the seconds that single images take, after a first one that is not counted."""
    times = []
    for image in islice(images, TIMED + 1):
        start = time.perf_counter()
        for _ in classifier.predictions([image]):
            pass
        times.append(time.perf_counter() - start)
    return times[1:] or times
