"""What a calibration is valid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from poise.errors import InvalidCalibrationError
from poise.text import counted


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What answers depend on beside the image and the method. A calibration is valid under the same conditions only.

    Attributes:
        model: name of the model.
        fingerprint: hash of its weights, preprocessing and tokenizer.
        labels: the labels in order.
        template: the prompt.
        context: which of its words are tuned, as `Classifier` was given it.
        init: where tuning starts: "template", another name, or a file.
        init_hash: hash of the vectors that tuning starts from; "" for "template".
        views: views per image.
        augmix: whether views are mixed with AugMix.
        seed: seed of the views, which are drawn from the seed and the image's pixels.
    """

    model: str
    fingerprint: str
    labels: tuple[str, ...]
    template: str
    context: str
    init: str
    init_hash: str
    views: int
    augmix: bool
    seed: int

    def check(self, now: Conditions, *, reads_views: bool = True) -> None:
        """Raise an error that names the first difference, with both values.

        Args:
            now: the conditions of a classifier.
            reads_views: whether its methods read augmented views; if not, the options of views do not matter.
        """
        ignored = set() if reads_views else {"views", "augmix", "seed", "context"}
        ignored |= {"model"} if self.fingerprint == now.fingerprint else set()
        ignored |= {"init"} if self.init_hash == now.init_hash else set()
        for name in (field.name for field in fields(self) if field.name not in ignored):
            then, given = getattr(self, name), getattr(now, name)
            if then == given:
                continue
            if name == "labels":
                then, given = _first_difference(then, given)
            raise InvalidCalibrationError(
                f"The calibration was made with {name} {then!r}, and this classifier has {given!r}.",
                hint="Answers would differ from the calibrated ones. Use the same options, or run `poise calibrate` "
                "again.",
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditions:
        """Read what a file of a calibration contains; every value is checked."""
        kinds: dict[str, type] = {"views": int, "seed": int, "augmix": bool, "labels": list}
        for name in (field.name for field in fields(cls)):
            if type(values[name]) is not kinds.get(name, str):
                raise ValueError(f"'{name}' is {values[name]!r}")
        if not values["labels"] or not all(isinstance(label, str) for label in values["labels"]):
            raise ValueError("its labels are not a list of texts")
        return cls(**{**values, "labels": tuple(values["labels"])})


def _first_difference(then: Sequence[str], given: Sequence[str]) -> tuple[str, str]:
    if sorted(then) == sorted(given):
        return "in another order", "the same labels"
    pairs = zip(then, given, strict=False)
    at = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(then), len(given)))
    old, new = (repr(names[at]) if at < len(names) else "nothing" for names in (then, given))
    return f"{counted(len(then), 'label')}, {old} at index {at}", f"{counted(len(given), 'label')}, {new} at index {at}"
