"""Choosing a calibrator by cross-validation, and how sure its parameters are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from poise.calibration.calibrators import Beta, Calibrator, Temperature
from poise.calibration.fits import CLIP, Fit
from poise.metrics.bootstrap import LEVEL, Interval, resampled_counts
from poise.metrics.sample import Bools, Floats, Ints, checked_count, checked_probs

# Decided on simulated worlds (benchmarks/calibrator_choice.py, 25 to 200 images). Beta contains temperature scaling, so
# it costs at most 0.005 nats where a temperature is the truth. Where a curve is the truth, one standard error would
# cost up to 0.018 nats and two up to 0.045: so few images rarely show the curve that clearly.
FEWEST = 10  # with fewer images, temperature is taken


@dataclass(frozen=True)
class Choice:
    """The result of `choose`.

    Attributes:
        calibrator: fitted on all images.
        reason: one sentence that says why.
        losses: mean held-out log-loss of the top label's correctness, in nats: "none" (as given), and each calibrator.
        difference: loss of temperature minus loss of beta, mean over images.
        standard_error: of the difference; infinite for a single image.
        intervals: each parameter of the calibrator with its 95 % bootstrap interval over images.
        held_out: probabilities [N, C], each image's calibrated by a fit without it.
    """

    calibrator: Calibrator
    reason: str
    losses: Mapping[str, float]
    difference: float
    standard_error: float
    intervals: Mapping[str, Interval]
    held_out: Floats = field(repr=False, compare=False)


def choose(
    probs: ArrayLike, labels: ArrayLike, *, folds: int = 5, repeats: int = 4, seed: int = 0, resamples: int = 500
) -> Choice:
    """Choose between temperature scaling and beta calibration, and fit the chosen one on all images.

    Beta calibration is temperature scaling followed by a curve with three parameters. It is chosen if its held-out
    log-loss is lower, on at least 10 images.

    Args:
        probs: class probabilities [N, C] of labelled images.
        labels: class indices [N].
        folds: parts of the cross-validation; at most N.
        repeats: cross-validations with different parts.
        seed: seed of the parts and of the bootstrap.
        resamples: of the bootstrap.
    """
    table, truth = checked_probs(probs, labels)
    correct = table.argmax(1) == truth
    parts = min(checked_count("folds", folds), len(truth))
    held = _held_out(correct, truth, parts, checked_count("repeats", repeats), seed)  # [R, N]
    fits: dict[type[Calibrator], Fit] = {kind: kind.fit(table, truth) for kind in (Temperature, Beta)}
    losses = {kind: _held_out_losses(fit, held, correct) for kind, fit in fits.items()}
    gain = losses[Temperature] - losses[Beta]  # [N]
    mean = float(gain.mean())
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else float("inf")
    kind: type[Calibrator] = Beta if len(truth) >= FEWEST and mean > 0 else Temperature
    fit, ones = fits[kind], np.ones(len(truth))
    calibrator = kind(*fit.refined(fit.parameters(ones[None])[0], ones).tolist())
    means = {
        "none": float(_log_loss(table.max(1), correct).mean()),
        **{kind.name: float(loss.mean()) for kind, loss in losses.items()},
    }
    reason = _reason(kind, len(truth), mean, error)
    if means[kind.name] >= means["none"]:
        reason += "; on these images, calibration does not lower the held-out log-loss"
    return Choice(
        calibrator,
        reason,
        means,
        mean,
        error,
        _intervals(calibrator, fit, resampled_counts(len(truth), resamples, seed)),
        _held_out_probs(kind, fit, held[:parts], table),
    )


def _held_out(correct: Bools, truth: Ints, folds: int, repeats: int, seed: int) -> Floats:
    """Return [folds * repeats, N], 1 where an image is held out; wrong images and classes are spread evenly."""
    generator = np.random.Generator(np.random.Philox(seed))
    held = np.zeros((repeats, folds, len(truth)))
    for repeat in held:
        order = np.lexsort((generator.random(len(truth)), truth, correct))
        repeat[np.arange(len(truth)) % folds, order] = 1
    return held.reshape(-1, len(truth))


def _held_out_probs(kind: type[Calibrator], fit: Fit, held: Floats, table: Floats) -> Floats:
    """Return the probabilities [N, C] of each image under the fit without it, for the parts of one cross-validation."""
    probs = np.empty_like(table)
    for out, parameters in zip(held.astype(bool), fit.parameters(1 - held), strict=True):
        probs[out] = kind(*parameters.tolist()).apply(table[out])
    return probs


def _held_out_losses(fit: Fit, held: Floats, correct: Bools) -> Floats:
    """Return the log-loss [N] of each image under fits without it, mean over repeats."""
    confidences = fit.confidences(fit.parameters(1 - held))
    return np.asarray((held * _log_loss(confidences, correct)).sum(0) / held.sum(0))


def _log_loss(confidence: Floats, correct: Bools) -> Floats:
    clipped = np.clip(confidence, CLIP, 1 - CLIP)
    return -np.log(np.where(correct, clipped, 1 - clipped))


def _intervals(calibrator: Calibrator, fit: Fit, counts: Iterable[Floats]) -> dict[str, Interval]:
    draws = np.concatenate([fit.parameters(block) for block in counts])  # [R, P]
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0).tolist()
    found = asdict(calibrator).items()
    return {name: Interval(value, min(low[at], value), max(high[at], value)) for at, (name, value) in enumerate(found)}


def _reason(kind: type[Calibrator], images: int, mean: float, error: float) -> str:
    if images < FEWEST:
        return f"temperature, because a comparison needs at least {FEWEST} images"
    verdict = "lower" if kind is Beta else "not lower"
    return (
        f"{kind.name}, because the held-out log-loss of beta is {verdict} than that of temperature "
        f"(difference {-mean:+.4f}, standard error {error:.4f})"
    )
