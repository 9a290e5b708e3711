"""What a calibration is valid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_origin

from poise.errors import InvalidCalibrationError
from poise.options import AnswerOptions, rows
from poise.text import as_words, counted

_SHOWN = 3  # of the paths of labels in an error message
GIVEN = "given probabilities"  # the model of a calibration that was made without one


@dataclass(frozen=True, kw_only=True)
class Conditions(AnswerOptions):
    """What answers depend on beside the image and the method. A calibration is valid under the same conditions only.

    Attributes:
        fingerprint: hash of the model's weights, preprocessing and tokenizer.
        init_hash: hash of the vectors that tuning starts from; "" for the init "template".
    """

    fingerprint: str
    init_hash: str

    @property
    def given(self) -> bool:
        """Whether the probabilities were given as numbers, so that nothing is known about their model."""
        return self.fingerprint == GIVEN

    def check_model(self) -> None:
        """Raise an error if no classifier can give such answers."""
        if self.given:
            raise InvalidCalibrationError(
                "The calibration is of probabilities that were given as numbers, and a classifier makes its own.",
                hint="Apply it to such probabilities: `poise calibrate apply`, or `Calibration.apply` in Python.",
            )

    def check(self, now: Conditions, *, reads_views: bool = True) -> None:
        """Raise an error that names the first difference, with both values.

        Args:
            now: the conditions of a classifier.
            reads_views: whether its methods read augmented views; if not, the options of views do not matter.
        """
        self.check_model()
        ignored = set() if reads_views else {row.name for row in rows(AnswerOptions) if row.about.views}
        ignored |= {"model"} if self.fingerprint == now.fingerprint else set()
        ignored |= {"init"} if self.init_hash == now.init_hash else set()
        for name in (field.name for field in fields(self) if field.name not in ignored):
            then, given = getattr(self, name), getattr(now, name)
            if then == given or (isinstance(then, tuple) and [*map(as_words, then)] == [*map(as_words, given)]):
                continue
            if name == "labels":
                then, given = _first_difference(then, given)
            elif isinstance(then, tuple):
                then, given = then[:_SHOWN], given[:_SHOWN]
            raise InvalidCalibrationError(
                f"The calibration was made with {name} {then!r}, and this classifier has {given!r}.",
                hint="Answers would differ from the calibrated ones. Use the same options, as "
                "`Classifier.from_calibration` does, or run `poise calibrate` again.",
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Conditions:
        """Read what a file of a calibration contains; every value is checked."""
        kinds: dict[str, Any] = {row.name: row.kind for row in rows(AnswerOptions)}
        kinds |= {"template": str, "fingerprint": str, "init_hash": str}
        lists = {name for name, kind in kinds.items() if get_origin(kind) is tuple}
        kinds |= dict.fromkeys(lists, list)
        later = {row.name for row in rows(AnswerOptions) if row.about.later} - {*values}
        found = {name: values[name] for name in kinds if name not in later}
        for name, value in found.items():
            if type(value) is not kinds[name]:
                raise ValueError(f"'{name}' is {value!r}")
        for name in lists & found.keys():
            if not all(isinstance(text, str) for text in found[name]):
                raise ValueError(f"its {name} are not a list of texts")
        if not found["labels"]:
            raise ValueError("it has no labels")
        return cls(**{**found, **{name: tuple(found[name]) for name in lists & found.keys()}})


def _first_difference(then: Sequence[str], given: Sequence[str]) -> tuple[str, str]:
    if sorted(then) == sorted(given):
        return "in another order", "the same labels"
    pairs = zip(then, given, strict=False)
    at = next((at for at, (old, new) in enumerate(pairs) if old != new), min(len(then), len(given)))
    old, new = (repr(names[at]) if at < len(names) else "nothing" for names in (then, given))
    return f"{counted(len(then), 'label')}, {old} at index {at}", f"{counted(len(given), 'label')}, {new} at index {at}"
