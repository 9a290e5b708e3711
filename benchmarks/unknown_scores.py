"""Candidate signals that need no labelled image, and the AUROC by which `unknown.py` compares them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image

from poise.encoding.class_texts import ClassTexts
from poise.inference.predictor import Predictor
from poise.metrics.sample import Bools, Floats
from poise.prompts import init_prompt, tokenise
from poise.types import DualEncoder
from poise.views import ViewRecipe

NEUTRAL = ("something", "thing", "object", "item", "entity", "stuff", "scene", "place", "background", "subject")
BROAD = (
    "person",
    "animal",
    "bird",
    "fish",
    "insect",
    "plant",
    "flower",
    "tree",
    "fruit",
    "food",
    "drink",
    "vehicle",
    "building",
    "room",
    "furniture",
    "tool",
    "machine",
    "device",
    "instrument",
    "toy",
    "clothing",
    "container",
    "landscape",
    "water",
    "sky",
    "sign",
    "drawing",
    "texture",
)
TEMPLATES = ("a photo of a {}.", "a picture of the {}.", "an image of one {}.", "this is a {}.", "{}")


def text_features(encoder: DualEncoder, labels: Sequence[str], template: str = TEMPLATES[0]) -> Floats:
    """Return unit features [C, D] of the labels under a template."""
    classes = tokenise(encoder, labels, template, context="none", repeats=True)
    prompt = init_prompt(encoder, classes)
    features: Floats = ClassTexts(encoder, classes, prompt).features(prompt)[0].double().numpy()
    return features


def blank_features(encoder: DualEncoder) -> Floats:
    """Return unit features [32, D] of images without content: random colours, from one per image to fine noise."""
    generator = np.random.default_rng(0)
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) for _ in range(4)]
    small = [Image.fromarray(generator.integers(0, 256, (size, size, 3), dtype=np.uint8)) for size in sizes]
    images = [image.resize((256, 256), Image.Resampling.BICUBIC) for image in small]
    outcomes = list(Predictor(encoder, views=ViewRecipe(1)).features(images))
    assert all(isinstance(outcome, torch.Tensor) for outcome in outcomes)
    return torch.stack(outcomes)[:, 0].double().numpy()  # type: ignore[arg-type]


def matches(cosines: Floats) -> Floats:
    """Return `Result.match` of each row of cosines [N, C]."""
    best = cosines.max(1, keepdims=True)
    return -np.log(np.exp(cosines - best).mean(1))


def scores(cosines: Floats, scale: float, neutral: Floats, broad: Floats) -> dict[str, Floats]:
    """Return the candidates [N] by name; higher means that the answer is more to be trusted.

    Args:
        cosines: of the plain views and the labels [N, C].
        scale: the model's factor from cosine to logit.
        neutral: of the plain views and the words NEUTRAL.
        broad: the same for BROAD.
    """
    best, logits = cosines.max(1), scale * cosines
    probs = _softmax(logits)
    ranked, ranked_probs = np.sort(cosines, axis=1), np.sort(probs, axis=1)
    peak = logits.max(1, keepdims=True)
    return {
        "confidence": probs.max(1),
        "probability margin": ranked_probs[:, -1] - ranked_probs[:, -2],
        "negative entropy": (probs * np.log(np.maximum(probs, 1e-300))).sum(1),
        "match (MCM)": matches(cosines),
        "best cosine": best,
        "best - mean cosine": best - cosines.mean(1),
        "best - mean, in standard deviations": (best - cosines.mean(1)) / cosines.std(1),
        "cosine margin": ranked[:, -1] - ranked[:, -2],
        "energy": (peak[:, 0] + np.log(np.exp(logits - peak).sum(1))) / scale,
        "best - best neutral word": best - neutral.max(1),
        "best - mean neutral word": best - neutral.mean(1),
        "best - best broad word": best - broad.max(1),
        "best - mean broad word": best - broad.mean(1),
    }


def familiarity(encoder: DualEncoder, labels: Sequence[str]) -> dict[str, Floats]:
    """Return the candidates [C] for how familiar the labels are to the model; higher means more familiar."""
    by_template = np.stack([text_features(encoder, labels, template) for template in TEMPLATES])
    centre = by_template.mean(0)
    generic = text_features(encoder, NEUTRAL).mean(0)
    neighbours = by_template[0] @ by_template[0].T - 2 * np.eye(len(labels))
    words = np.array([len(label.replace("_", " ").split()) for label in labels])
    tokens = np.array([len(ids) - 2 for ids in encoder.token_ids([label.replace("_", " ") for label in labels])])
    return {
        "stability over templates": np.linalg.norm(centre, axis=1),
        "distance from neutral words": -by_template[0] @ generic / np.linalg.norm(generic),
        "few tokens per word": -tokens / words,
        "distance from the nearest label": -neighbours.max(1),
    }


def auroc(score: Floats, good: Bools) -> Callable[[Floats], Floats]:
    """Return a function from counts [R, N] to the probability [R] that a good image has the higher score.

    Ties count one half. A resample without both kinds of images gives NaN.
    """
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf))
    ranked_good = good[order]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        goods = np.add.reduceat(drawn * ranked_good, starts, axis=1)
        bads = np.add.reduceat(drawn * ~ranked_good, starts, axis=1)
        below = np.cumsum(bads, axis=1) - bads
        pairs = goods.sum(1) * bads.sum(1)
        with np.errstate(invalid="ignore"):
            return np.asarray((goods * (below + bads / 2)).sum(1) / pairs)

    return weighted


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
