"""Metrics of independent labels and of trees: values by hand, and weighted forms against resampled images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from poise import metrics
from poise.errors import InvalidOptionError
from poise.metrics import Sample, available, get

OF_LABELS = ("map", "label_ece", "label_ece_floor", "label_brier", "yes", "no", "precision", "recall")
OF_TREES = ("height", "node_answered", "node_error", "depth")


def labels(seed: int = 0, images: int = 40) -> Sample:
    generator = np.random.default_rng(seed)
    chances = generator.integers(0, 11, (images, 4)) / 10  # with ties
    has = generator.random((images, 4)) < chances * [1, 1, 0.4, 0]  # no image has the last label
    return Sample.of_independent(chances, has, generator.integers(-1, 2, (images, 4)))


def tree(seed: int = 0, images: int = 40) -> Sample:
    generator = np.random.default_rng(seed)
    sample = Sample.of_top(generator.random(images), generator.random(images) < 0.5)
    height, depth = generator.integers(0, 3, images), generator.integers(0, 4, images)
    return replace(sample, height=height, depth=depth, right=generator.random(images) < 0.7)


def test_each_kind_of_sample_has_its_metrics() -> None:
    assert available(labels()) == list(OF_LABELS)  # accuracy and ECE would mean something else
    assert set(OF_TREES) <= set(available(tree()))
    assert not {*OF_LABELS, *OF_TREES} & set(available(Sample.of_top([0.5], [True])))
    silent = replace(labels(), outcomes=np.zeros((40, 4), dtype=np.int64))
    assert "precision" not in available(silent)
    assert "depth" not in available(replace(tree(), depth=np.zeros(40, dtype=np.int64)))
    with pytest.raises(InvalidOptionError, match="needs at least one yes"):
        get("precision").on_counts(silent)


@pytest.mark.parametrize("name", [*OF_LABELS, *OF_TREES])
def test_weighted_forms_equal_repeated_images(name: str) -> None:
    sample, metric = (labels() if name in OF_LABELS else tree()), get(name)
    counts = np.concatenate([np.ones((1, 40)), np.random.default_rng(1).multinomial(40, [1 / 40] * 40, 6)])
    expected = [metric.value(sample.take(np.repeat(np.arange(40), row.astype(int)))) for row in counts]
    np.testing.assert_allclose(metric.on_counts(sample)(counts.astype(float)), expected, atol=1e-12)


def test_values_equal_a_plain_computation() -> None:
    sample = labels()
    assert sample.has is not None
    assert sample.chances is not None
    assert sample.outcomes is not None
    present = [at for at in range(4) if sample.has[:, at].any()]
    assert present == [0, 1, 2]
    scores = [average_precision_score(sample.has[:, at], sample.chances[:, at]) for at in present]
    assert get("map").value(sample) == pytest.approx(np.mean(scores))
    each = [metrics.ece(sample.chances[:, at], sample.has[:, at]) for at in range(4)]
    assert get("label_ece").value(sample) == pytest.approx(np.mean(each))
    floors = [metrics.ece_floor(sample.chances[:, at]) for at in range(4)]
    assert get("label_ece_floor").value(sample) == pytest.approx(np.mean(floors))
    yes, no = sample.outcomes == 1, sample.outcomes == -1
    assert get("precision").value(sample) == pytest.approx(sample.has[yes].mean())
    assert get("recall").value(sample) == pytest.approx(1 - no[sample.has].mean())
    other = tree()
    assert other.depth is not None
    assert other.right is not None
    answered = other.depth > 0
    assert get("depth").value(other) == pytest.approx(other.depth[answered].mean())
    assert get("node_error").value(other) == pytest.approx(1 - other.right[answered].mean())


def test_bad_tables_are_refused() -> None:
    for chances, has in (([[0.5, 1.2]], [[0, 1]]), ([[0.5, 0.5]], [[0]]), ([0.5], [0]), ([[0.5]], [[2]])):
        with pytest.raises(InvalidOptionError):
            Sample.of_independent(chances, has)
