"""The examples do what the page says of them, with the model `pocket`."""

from __future__ import annotations

import pytest

import poise
from poise.demo.example_rows import EXAMPLES, find_example, remark


@pytest.fixture(scope="module")
def pocket():
    return poise.load_model("pocket", device="cpu")


def ask(pocket, example, method="zero-shot", views=64):
    return poise.Classifier(example.labels, pocket, method, views=views)(example.path)


def test_examples_are_right_in_doubt_wrong_or_not_offered(pocket) -> None:
    cat, coffee, rocket, astronaut, absent = EXAMPLES
    assert ask(pocket, cat).label == "cat"
    assert ask(pocket, cat).confidence > 0.95
    assert ask(pocket, coffee).label == "coffee"
    assert ask(pocket, rocket).confidence < 0.6
    wrong = ask(pocket, astronaut)
    assert wrong.label != astronaut.truth
    assert "wrong" in remark(astronaut, wrong)
    sure = ask(pocket, absent)
    assert absent.truth not in absent.labels
    assert sure.confidence > 0.9
    assert sure.match < 0.7 * ask(pocket, cat).match
    assert "no label says so" in remark(absent, sure)


def test_tuning_lowers_the_confidence_of_the_coffee(pocket) -> None:
    answers = poise.Classifier(EXAMPLES[1].labels, pocket, ["zero-shot", "kld+cats"])(EXAMPLES[1].path)
    assert answers["kld+cats"].confidence < answers["zero-shot"].confidence - 0.03
    assert "right" in remark(EXAMPLES[1], answers["kld+cats"])


def test_an_example_is_known_by_its_image_and_labels(image) -> None:
    example = EXAMPLES[0]
    assert find_example(example.path.read_bytes(), example.labels) is example
    assert find_example(example.path.read_bytes(), ("cat", "dog")) is None
    assert find_example(image, example.labels) is None
