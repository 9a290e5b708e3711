"""Turns the answers for labelled images into a `Calibration`: metrics, calibrators, scores and a recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poise.calibration.conditions import Conditions
from poise.calibration.conformal import scores
from poise.calibration.plan import Drawn
from poise.calibration.posterior import fit_calibrator, held_out
from poise.calibration.stored import Calibration, Further, MethodCalibration, plain
from poise.calibration.tree import Tree
from poise.metrics.bootstrap import Estimate, Interval, estimate, mean_interval
from poise.metrics.sample import Floats, Ints, Sample
from poise.metrics.shares import wilson_interval

BEFORE = ("accuracy", "ece", "ece_floor", "nll", "brier")
AFTER = ("accuracy", "nll", "brier")  # means over images: those of cross-validation are what new images would give


@dataclass(frozen=True, eq=False)
class Answers:
    """One method's answers for the calibration images.

    Attributes:
        settings: the method's settings.
        probs: its probabilities [n, C].
        seconds: time per image, of some of the images; none where only probabilities are known.
        match: how well each image matches its best label [n]; None where only probabilities are known.
    """

    settings: Mapping[str, Any]
    probs: Floats
    seconds: Sequence[float] = ()
    match: Floats | None = None

    def take(self, rows: Ints) -> Answers:
        """Return the answers for some of the images."""
        return replace(self, probs=self.probs[rows], match=None if self.match is None else self.match[rows])


def assess(
    conditions: Conditions,
    answers: Mapping[str, Answers],
    labels: Ints,
    u: Floats,
    keys: Sequence[str],
    *,
    delta: float = 0.05,
    tree: Tree | None = None,
    drawn: Drawn | None = None,
) -> Calibration:
    """Return the calibration that the answers of several methods for n images give.

    Thresholds are certified with probability 1 - delta for all methods together, so that the method may be chosen
    after looking at them.

    Args:
        conditions: what the answers depend on beside the images.
        answers: by name of the method.
        labels: correct classes [n].
        u: random numbers in [0, 1], one per image [n].
        keys: hashes of the images.
        delta: probability with which a certified threshold may fail.
        tree: of the labels; thresholds are then those of its nodes.
        drawn: how the images were drawn, of one method; None: all are a random sample. Everything but certificates
            comes from the random sample then.
    """
    parts, after = {}, {}
    for name, answer in answers.items():
        if drawn is None or not drawn.above.any():
            parts[name], after[name] = _assess(answer, labels, u, delta / len(answers), tree)
            continue
        rows = np.flatnonzero(~drawn.above)
        part, after[name] = _assess(answer.take(rows), labels[rows], u[rows], delta / len(answers), None)
        parts[name] = replace(part, further=_further(answer.probs, labels, drawn))
    seconds = {name: 0.0 if part.seconds is None else part.seconds.value for name, part in parts.items()}
    recommended, reason = recommend(seconds, after)
    return Calibration(
        conditions=conditions, methods=parts, recommended=recommended, reason=reason, images=frozenset(keys)
    )


def _assess(
    answer: Answers, labels: Ints, u: Floats, delta: float, tree: Tree | None
) -> tuple[MethodCalibration, dict[str, Estimate]]:
    sample, fit = Sample.of(answer.probs, labels), fit_calibrator(answer.probs, labels)
    before = estimate([sample], names=BEFORE)
    after = estimate([Sample.of(held_out(answer.probs, labels), labels)], names=AFTER)
    part = MethodCalibration(
        settings=plain(answer.settings),
        delta=delta,
        labels=labels,
        predicted=np.argmax(answer.probs, axis=1),
        confidence=sample.confidence,
        match=answer.match,
        scores={name: scores.get(name).of_labels(answer.probs, labels, u) for name in scores},
        calibrator=fit.calibrator,
        unchanged=fit.unchanged,
        intervals=fit.intervals,
        before={name: value.interval for name, value in before.items()} | {"accuracy": _accuracy(sample)},
        after={name: after[name].interval for name in ("nll", "brier")},
        seconds=mean_interval(answer.seconds) if answer.seconds else None,
        node_thresholds=None if tree is None else tree.thresholds(answer.probs, labels),
    )
    return part, after


def _further(probs: Floats, labels: Ints, drawn: Drawn) -> Further:
    """Return the answers for images that were drawn above the cut-off."""
    rows = probs[drawn.above]
    return Further(drawn.cutoff, labels[drawn.above], rows.argmax(1), rows.max(1))


def recommend(seconds: Mapping[str, float], after: Mapping[str, Mapping[str, Estimate]]) -> tuple[str, str]:
    """Return the cheapest method that is not significantly worse than the best, and the reason in one sentence.

    The best has the lowest Brier score after calibration. Worse means that the 95 % confidence interval of the paired
    difference excludes 0, in the Brier score or in accuracy.

    Args:
        seconds: time per image, by method.
        after: estimates of "brier" and "accuracy" after calibration on the same resamples, by method.
    """
    best = min(after, key=lambda name: after[name]["brier"].value)
    good = [name for name in after if name == best or not _worse(after[name], after[best])]
    chosen = min(good, key=lambda name: seconds[name])
    score = f"Brier score {after[best]['brier'].value:.3f}"
    if len(after) == 1:
        return best, f"{best} is the only method, with the {score}."
    if chosen == best:
        cheaper = [name for name in after if seconds[name] < seconds[best]]
        verbs = "costs less, but is" if len(cheaper) == 1 else "cost less, but are"
        note = f"; {', '.join(cheaper)} {verbs} significantly worse" if cheaper else " and costs least"
        return best, f"{best} has the best {score}{note}."
    difference = after[chosen]["brier"] - after[best]["brier"]
    low, high = difference.bounds
    return chosen, (
        f"{chosen} takes {seconds[chosen]:.3g} s per image instead of {seconds[best]:.3g} s, and is not significantly "
        f"worse than {best}, which has the best {score} (difference {difference.value:+.3f}, 95 % confidence interval "
        f"{low:+.3f} to {high:+.3f})."
    )


def _worse(one: Mapping[str, Estimate], other: Mapping[str, Estimate]) -> bool:
    brier, accuracy = one["brier"] - other["brier"], one["accuracy"] - other["accuracy"]
    return (brier.clear and brier.value > 0) or (accuracy.clear and accuracy.value < 0)


def _accuracy(sample: Sample) -> Interval:
    """Return the accuracy with its Wilson interval, which has a width even if every answer is right."""
    share = float(sample.correct.mean())
    return Interval(share, *wilson_interval(share, len(sample)))
