"""OnZeta equals its formula, computed image by image in plain float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poise.rules import CosineHead, rules
from poise.types import Outputs


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def oracle(
    images: np.ndarray, texts: np.ndarray, a: float, most: float, n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The published update with temperatures 0.01 and 0.04: answers [N, C], the last prior [C] and proxies [C, D]."""
    proxies, prior, answers = texts.copy(), np.zeros(len(texts)), []
    for i, image in enumerate(images):
        q = softmax(texts @ image / 0.01) * np.exp(prior)
        q = q / q.sum()
        prior = np.maximum(0, prior - 20 / np.sqrt(i + 1) * (q - a / len(texts)))
        u = softmax(proxies @ image / 0.04)
        beta = most * np.sqrt((i + 1) / n)
        answers.append(beta * u + (1 - beta) * q)
        proxies = proxies - 0.5 / np.sqrt(i + 1) / 0.04 * np.outer(u - q, image)
        proxies = proxies / np.linalg.norm(proxies, axis=1, keepdims=True)
    return np.array(answers), prior, proxies


def example() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    texts = numbers.standard_normal((5, 16)) + 3
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    images = texts[numbers.integers(0, 5, 30)] + 0.05 * numbers.standard_normal((30, 16))
    return images / np.linalg.norm(images, axis=1, keepdims=True), texts


@pytest.mark.parametrize(("a", "most"), [(1.0, 0.4), (0.0, 0.4), (1.0, 0.8)])
def test_it_equals_its_formula(a: float, most: float) -> None:
    images, texts = example()
    head = CosineHead(scale=100.0)
    rule = rules.get("onzeta")(length=30, proxies=most, balance=a)
    views, text = torch.tensor(images)[:, None], torch.tensor(texts)
    state = rule.start(text)
    state, answer = rule.answer(state, head.outputs(views, text[None]), head)
    expected, prior, proxies = oracle(images, texts, a, most, 30)
    np.testing.assert_allclose(answer.logits.exp().numpy(), expected, atol=1e-10)
    np.testing.assert_allclose(state["prior"].numpy(), prior, atol=1e-9)
    np.testing.assert_allclose(state["proxies"].numpy(), proxies, atol=1e-9)
    assert np.abs(expected - np.array([softmax(100 * texts @ image) for image in images])).max() > 0.05


def test_a_stream_that_is_longer_than_announced() -> None:
    images, texts = example()
    head = CosineHead(scale=100.0)
    out: Outputs = head.outputs(torch.tensor(images)[:, None], torch.tensor(texts)[None])
    probs = rules.get("onzeta")(length=3)(out, head).logits.exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(30, dtype=probs.dtype))


def test_published_values() -> None:
    rule = rules.get("onzeta")(values="published")
    assert rule.published("imagenet-r") == {"proxies": 0.8, "balance": 1.0}
    assert rule.published("caltech101") == {"proxies": 0.4, "balance": 0.0}
    assert rules.get("onzeta")().published("caltech101") == {}
