"""What a calibration is valid for: every difference is refused and named, except those that change no answer."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from poise.calibration import Conditions
from poise.errors import InvalidCalibrationError

MADE = Conditions(
    model="m",
    fingerprint="f",
    labels=("a", "b", "c"),
    template="a photo of a {}.",
    context="auto",
    init="template",
    init_hash="",
    views=64,
    augmix=True,
    seed=0,
)
HINT = (
    "Answers would differ from the calibrated ones. Use the same options, as `Classifier.from_calibration` does, or "
    "run `poise calibrate` again."
)
OTHER = {
    "fingerprint": "g",
    "template": "{}",
    "context": "all",
    "init_hash": "h",
    "views": 8,
    "augmix": False,
    "seed": 1,
}


@pytest.mark.parametrize("name", OTHER)
def test_a_difference_is_named_with_both_values(name: str) -> None:
    with pytest.raises(InvalidCalibrationError) as problem:
        MADE.check(replace(MADE, **{name: OTHER[name]}))
    text = f"The calibration was made with {name} {getattr(MADE, name)!r}, and this classifier has {OTHER[name]!r}."
    assert str(problem.value) == f"{text} {HINT}"


def test_equal_conditions_pass() -> None:
    MADE.check(MADE)
    MADE.check(replace(MADE), reads_views=False)


def test_the_first_difference_is_named_and_names_follow_hashes() -> None:
    MADE.check(replace(MADE, model="a copy of m", init="vectors.safetensors"))  # same weights and same vectors
    with pytest.raises(InvalidCalibrationError, match="made with model 'm', and this classifier has 'n'"):
        MADE.check(replace(MADE, model="n", fingerprint="g"))
    with pytest.raises(InvalidCalibrationError, match="made with init 'template', and this classifier has 'coop'"):
        MADE.check(replace(MADE, init="coop", init_hash="h"))


@pytest.mark.parametrize("name", OTHER)
def test_options_of_views_do_not_matter_to_methods_without_views(name: str) -> None:
    now = replace(MADE, **{name: OTHER[name]})
    if name in ("views", "augmix", "seed", "context"):
        MADE.check(now, reads_views=False)
    else:
        with pytest.raises(InvalidCalibrationError, match=f"made with {name} "):
            MADE.check(now, reads_views=False)


@pytest.mark.parametrize(
    ("labels", "then", "given"),
    [
        (("b", "a", "c"), "in another order", "the same labels"),
        (("a", "x", "c"), "3 labels, 'b' at index 1", "3 labels, 'x' at index 1"),
        (("a", "b"), "3 labels, 'c' at index 2", "2 labels, nothing at index 2"),
        (("a", "b", "c", "d"), "3 labels, nothing at index 3", "4 labels, 'd' at index 3"),
        (("x", "b", "y"), "3 labels, 'a' at index 0", "3 labels, 'x' at index 0"),
    ],
)
def test_the_first_label_that_differs_is_named(labels: tuple[str, ...], then: str, given: str) -> None:
    with pytest.raises(InvalidCalibrationError) as problem:
        MADE.check(replace(MADE, labels=labels))
    assert problem.value.message == f"The calibration was made with labels {then!r}, and this classifier has {given!r}."


def test_conditions_are_read_back_from_plain_values() -> None:
    values = {**asdict(MADE), "labels": list(MADE.labels), "parents": [], "groups": []}
    assert Conditions.from_dict(values) == MADE
    wrong = {"views": "64", "seed": True, "augmix": 1, "labels": "abc", "model": None, "template": 3, "init_hash": None}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=rf"^'{name}' is {value!r}$"):
            Conditions.from_dict({**values, name: value})
    for labels in ([], ["a", 3], [None]):
        with pytest.raises(ValueError, match="labels") as problem:
            Conditions.from_dict({**values, "labels": labels})
        assert str(problem.value) == ("its labels are not a list of texts" if labels else "it has no labels")
