"""Errors where a guarantee that is asked for needs more images than there are."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from poise.calibration.certify import Certificate, images_for_error
from poise.calibration.conformal import images_for_coverage
from poise.calibration.estimates import images_needed, lowest_error, surest
from poise.calibration.levels import exact_level, failure
from poise.errors import InvalidCalibrationError
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration.stored import MethodCalibration

FEW = 20  # images; with fewer there is a warning


def several(levels: float | Sequence[float]) -> Sequence[float]:
    """Return one level, or several, as several."""
    return [levels] if isinstance(levels, int | float) else levels


def warn_if_few(images: int) -> None:
    """Warn the caller's caller where images say little."""
    if images < FEW:
        warnings.warn(f"{images} images say little: use {FEW} or more, better 100", stacklevel=4)


def check_number(
    images: int, *, methods: int, coverage: Sequence[float], max_error: Sequence[float], confidence: float
) -> None:
    """Raise an error if the guarantees that are asked for need more images."""
    levels = (("confidence", [confidence]), ("coverage", coverage), ("max_error", max_error))
    for name, level in ((name, level) for name, several in levels for level in several):
        exact_level(name, level)
    needed = {f"prediction sets with coverage {level:g}": images_for_coverage(level) for level in coverage}
    for level in max_error:
        what = f"an error of at most {level:g} with confidence {confidence:g}"
        needed[what] = images_for_error(level, failure(confidence) / methods)
    needed["any calibration"] = 2
    if problems := [f"at least {count} are needed for {what}" for what, count in needed.items() if images < count]:
        raise InvalidCalibrationError(
            f"{counted(images, 'image')} {'is' if images == 1 else 'are'} too few: {'; '.join(problems)}.",
            hint="Label more images, or ask for a lower coverage or a higher error."
            + (" Several methods share the confidence: one method needs fewer images." if methods > 1 else ""),
        )


def check_coverage(coverage: float, images: int) -> None:
    """Raise an error unless prediction sets with this coverage can be made from so many images."""
    if images < (needed := images_for_coverage(coverage)):
        raise InvalidCalibrationError(
            f"Prediction sets with coverage {coverage:g} need {needed} calibration images, and there are {images}.",
            hint="Calibrate on more images, or ask for a lower coverage.",
        )


def certified(name: str, part: MethodCalibration, max_error: float) -> Certificate:
    """Return the certificate of a method, or raise an error that says what can be certified instead."""
    certificate = part.certificate(max_error)
    if certificate.threshold is None and part.node_thresholds is not None:
        raise InvalidCalibrationError(
            f"{name}: no threshold is certain to keep the error of nodes at {100 * max_error:g} % with these "
            f"{len(part.labels)} calibration images.",
            hint="Calibrate on more images, or choose another level before looking at results.",
        )
    if certificate.threshold is None:
        confidence, correct = part.surest
        needed = images_needed(confidence, correct, max_error, part.delta)
        lowest, fifth = lowest_error(confidence, correct, part.delta), surest(confidence, correct, 0.2)
        more = (
            f"About {needed} images would do it, if the others are like these."
            if needed is not None
            else f"More images would hardly help: of the surest fifth, {fifth.errors} of {fifth.answered} are wrong."
        )
        least = "" if lowest is None else f" {100 * lowest:.0f} % can be certified with these."
        raise InvalidCalibrationError(
            f"{name}: no confidence threshold is certain to keep the error at {100 * max_error:g} % with these "
            f"{len(confidence)} calibration images{'' if part.further is None else ' above the cut-off'}.",
            hint=f"{more}{least} Choose the level before looking at results: one that was picked because it can be "
            "certified holds with less confidence.",
        )
    return certificate
