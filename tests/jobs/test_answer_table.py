"""The rows of parts against results that are made one image at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from poise import Classifier
from poise.inference.batches import SourceGroup
from poise.jobs.answer_table import SCHEMA, Shown, answer_table, top_labels
from poise.results import COLUMNS, Failure, flat_rows

LABELS = ["cat", "dog", "tree", "house", "car"]
OPTIONS: dict[str, Any] = {"model": "tiny", "method": ["zero-shot", "kld+cats"], "views": 4, "device": "cpu"}


@pytest.fixture(scope="module")
def images() -> list[Any]:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 24, 32, 3), np.uint8)
    return [*pixels[:25], b"no image", *pixels[25:]]


def table(classifier: Classifier[Any], images: list[Any], shown: Shown) -> list[dict[str, Any]]:
    group = SourceGroup(images, classifier.read_recipe(), lambda: classifier.tuner)
    batches = classifier.predictor.batches([group])
    return [
        row
        for batch in batches
        for row in answer_table(classifier, batch.images, batch.result, "a.tar", shown).to_pylist()
    ]


def test_labels_in_groups_and_in_a_tree(images: list[Any]) -> None:
    grouped = Classifier({"what": ["cat", "dog"], "where": ["tree", "house", "car"]}, **OPTIONS)
    found = table(grouped, images[:4], Shown(threshold=0.1))
    expected = [result.decided_at(0.1) for outcome in grouped.each(images[:4]) for result in outcome.values()]  # type: ignore[union-attr]
    assert [(row["label"], row["decision"]) for row in found] == [(row.label, row.decision) for row in expected]
    tree = Classifier(
        LABELS, parents={"cat": "animal", "dog": "animal", "tree": "", "house": "thing", "car": "thing"}, **OPTIONS
    )
    found = table(tree, images[:4], Shown(threshold=0.6))
    expected = [result.decided_at(0.6) for outcome in tree.each(images[:4]) for result in outcome.values()]  # type: ignore[union-attr]
    assert [(row["node"], row["depth"]) for row in found] == [(row.node, row.depth) for row in expected]


def check(classifier: Classifier[Any], images: list[Any], shown: Shown) -> list[dict[str, Any]]:
    """Compare all columns with those of `Result`, numbers up to the rounding of their storage."""
    found = table(classifier, images, shown)
    outcomes = list(classifier.each(images))
    expected = [row for outcome in outcomes for row in flat_rows(outcome, LABELS, shown.top_k)]
    results = [
        result for outcome in outcomes for result in ([outcome] if isinstance(outcome, Failure) else outcome.values())
    ]
    assert len(found) == len(expected)
    for ours, theirs, result in zip(found, expected, results, strict=True):
        for name in COLUMNS:
            if name in ("decision", "threshold") and shown.threshold is not None:
                continue
            value = list(theirs[name]) if isinstance(theirs[name], tuple) else theirs[name]
            if isinstance(value, float):
                assert ours[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name
            else:
                assert ours[name] == value, name
        assert ours["shard"] == "a.tar"
        if isinstance(result, Failure):
            assert (ours["error_code"], ours["error_message"]) == (result.code, result.message)
            continue
        assert ours["error_code"] is ours["error_message"] is None
        assert ours["notes"] == list(result.notes)
        labels, probs = zip(*result.top(shown.top_k), strict=True)
        assert ours["top_labels"] == list(labels)
        assert ours["top_probabilities"] == pytest.approx(list(probs), rel=1e-5, abs=1e-6)
    return found


def test_rows_are_those_of_results(images: list[Any]) -> None:
    check(Classifier(LABELS, **OPTIONS), images, Shown(top_k=3))


def test_rejected_images_and_a_threshold_of_ones_own(images: list[Any]) -> None:
    plain = Classifier(LABELS, **OPTIONS)
    matches = [row["match"] for row in table(plain, images, Shown()) if row["method"] == "zero-shot"]
    found = check(Classifier(LABELS, reject=float(np.median(matches)), **OPTIONS), images, Shown(2, threshold=0.9))
    answered = [row for row in found if row["error_code"] is None]
    assert 0 < sum(row["label"] == "unknown" for row in answered) < len(answered)
    for row in answered:
        sure = row["confidence"] >= 0.9 and row["rejected"] is None
        assert row["decision"] == ("answer" if sure else "abstain")


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_calibrated_rows_with_sets_and_decisions(images: list[Any]) -> None:
    pixels = list(np.random.default_rng(1).integers(0, 256, (60, 24, 32, 3), np.uint8))
    plain = Classifier(LABELS, **OPTIONS)
    truth = [LABELS[at % 5] for at in range(60)]
    calibration = plain.calibrate(pixels, truth, coverage=0.8)
    calibrated = Classifier(LABELS, calibration=calibration, coverage=0.8, **OPTIONS)
    found = check(calibrated, [*images, pixels[0]], Shown(top_k=9))
    assert found[-1]["error_code"] == "calibration_image"
    assert all(row["prediction_set"] for row in found if row["error_code"] is None)


def test_images_whose_output_is_not_finite_have_one_row(images: list[Any]) -> None:
    classifier = Classifier(LABELS, **OPTIONS)
    group = SourceGroup(images[:3], classifier.read_recipe(), lambda: classifier.tuner)
    (batch,) = classifier.predictor.batches([group])
    assert batch.result is not None
    batch.result[0]["kld+cats"].probs[1, 0] = math.nan
    rows = answer_table(classifier, batch.images, batch.result, "s", Shown()).to_pylist()
    assert [row["error_code"] for row in rows] == [None, None, "non_finite", None, None]


def test_top_labels_are_those_of_a_stable_sort() -> None:
    numbers = torch.randint(0, 4, (200, 7), generator=torch.Generator().manual_seed(0)).double()
    for count in (1, 2, 3, 6, 7, 9):
        values, order = numbers.sort(dim=-1, descending=True, stable=True)
        found = top_labels(numbers, count)
        assert torch.equal(found[0], values[:, :count])
        assert torch.equal(found[1], order[:, :count])


def test_the_columns_are_those_of_results() -> None:
    assert SCHEMA.names[: len(COLUMNS)] == list(COLUMNS)
