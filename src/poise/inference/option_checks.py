"""Checks of options that need no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from poise import methods as method_table
from poise.errors import InvalidOptionError
from poise.inference.guarantees import read
from poise.methods import Method

AUTO = "auto"  # as the number of views


def find_methods(method: str | Method | Sequence[str | Method], views: int | None = None) -> tuple[Method, ...]:
    """Return the methods that the option ``method`` names; each must accept the number of views, if it is given."""
    chosen = [method] if isinstance(method, str | Method) else list(method)
    if not chosen:
        raise InvalidOptionError("No method was given.", hint=f"Known: {', '.join(method_table.names())}.")
    found = tuple(method_table.get(item) if isinstance(item, str) else item for item in chosen)
    if views is not None:
        for item in found:
            item.check_views(views)
    streams = [item.name for item in found if item.ordered]
    if streams:
        raise InvalidOptionError(
            f"The answers of {', '.join(streams)} depend on the images before.",
            hint="Here each image is answered by itself. Run such methods with `poise bench run`.",
        )
    return found


def find_views(views: int | str, batch_size: object, calibration: Any) -> int:
    """Return the number of views, where "auto" is that of the calibration; check it and the images per batch."""
    if views != AUTO:
        check_counts(views, batch_size)
        return int(views)
    check_counts(1, batch_size)
    if calibration is None:
        raise InvalidOptionError(
            "views='auto' needs images to decide on.",
            hint="Use `poise calibrate --views auto`, or poise.inference.auto_views.choose_views(classifier, images), "
            "or give a number.",
        )
    return int(read(calibration).conditions.views)


def check_counts(views: object, batch_size: object) -> None:
    """Raise an error if the number of views, or of images per batch, is not valid."""
    views_hint, batch_size = " The plain image counts as a view.", 1 if batch_size is None else batch_size
    for name, count, hint in (("views", views, views_hint), ("batch_size", batch_size, "")):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InvalidOptionError(f"{name} is {count!r}.", hint=f"Use a whole number of at least 1.{hint}")


def check_structure(groups: object, parents: object, calibration: object, *, independent: bool = False) -> None:
    """Raise an error if labels have more structure than one classifier answers."""
    if independent and (groups or parents):
        raise InvalidOptionError(
            "Independent labels are in groups or in a tree.", hint="Give independent labels as one list."
        )
    if groups and parents:
        raise InvalidOptionError(
            "Labels are in groups and in a tree.", hint="Give one of them, or one classifier for each group."
        )
    if groups and calibration is not None:
        raise InvalidOptionError(
            "A calibration is of one group of labels.",
            hint="Calibrate and classify each group by itself: its probabilities are the same as here.",
        )


def check_guarantees(calibration: object, coverage: object, max_error: object, reject: object) -> None:
    """Raise an error if these options of `Classifier` don't fit together."""
    if calibration is None and (coverage is not None or max_error is not None):
        raise InvalidOptionError(
            "coverage and max_error need a calibration.",
            hint="Make one with `poise calibrate` or `Classifier.calibrate`, and give it as `calibration`.",
        )
    if reject is not None and max_error is not None:
        raise InvalidOptionError(
            "reject and max_error both decide what is answered, and the certified error holds for max_error alone.",
            hint="Give one of them.",
        )
