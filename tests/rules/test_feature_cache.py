"""A cache of features: which rows leave, and that sums over classes are the plain ones."""

from __future__ import annotations

import torch

from poise.rules.feature_cache import FeatureCache

TEXTS = torch.eye(3, dtype=torch.float64)


def filled(entropies: list[float], *, capacity: int = 2, drop_oldest: bool = False) -> list[float]:
    """The entropies that class 1 keeps."""
    cache = FeatureCache.empty(TEXTS)
    for entropy in entropies:
        cache = cache.put(1, TEXTS[0], torch.tensor(entropy), capacity=capacity, drop_oldest=drop_oldest)
    assert cache.counts.tolist() == [0, min(capacity, len(entropies)), 0]
    return [round(float(entropy), 3) for entropy in cache.entropy]


def test_the_least_sure_row_leaves() -> None:
    assert filled([0.5, 0.2, 0.4]) == [0.2, 0.4]
    assert filled([0.5, 0.2, 0.9]) == [0.5, 0.2]
    assert filled([0.5, 0.2, 0.4], drop_oldest=True) == [0.2, 0.4]
    assert filled([0.2, 0.5, 0.9], drop_oldest=True) == [0.5, 0.9]


def test_of_equal_rows_the_latest_leaves() -> None:
    cache = FeatureCache.empty(TEXTS)
    for row in range(3):
        cache = cache.put(0, TEXTS[row], torch.tensor(0.5), capacity=2)
    assert torch.equal(cache.features, TEXTS[:2])


def test_classes_are_apart_and_sums_are_plain() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 3, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 2, (20,), generator=generator)  # class 2 stays empty
    cache = FeatureCache.empty(TEXTS, marks=1)
    for number, (row, label) in enumerate(zip(rows, labels.tolist(), strict=True)):
        mark = torch.tensor([number % 3 == 0])
        cache = cache.put(label, row, torch.tensor(float(number)), capacity=20, marks=mark)
    for label in range(3):
        expected = rows[labels == label].sum(0)
        torch.testing.assert_close(cache.per_class(cache.features)[label], expected, atol=1e-12, rtol=0)
    arrived = [number for label in range(3) for number in range(20) if labels[number] == label]
    assert cache.entropy.tolist() == [float(number) for number in arrived]
    assert cache.marks[:, 0].tolist() == [number % 3 == 0 for number in arrived]


def test_a_put_leaves_the_cache_as_it_was() -> None:
    cache = FeatureCache.empty(TEXTS).put(1, TEXTS[0], torch.tensor(0.5), capacity=1)
    before = {name: tensor.clone() for name, tensor in cache.named("x").items()}
    cache.put(1, TEXTS[1], torch.tensor(0.1), capacity=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in cache.named("x").items())
    assert torch.equal(FeatureCache.of(before, "x").features, cache.features)
