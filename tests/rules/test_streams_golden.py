"""Numbers of the published TDA, BoostAdapter, DMN and Tip-Adapter code, equalled in float64."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from poise.rules import CosineHead, StreamRule, rules
from poise.rules.feature_cache import FeatureCache
from poise.rules.tip_adapter import LabelledCache, cache_keys, save_cache

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = {case["id"]: case for case in json.loads((GOLDEN / "streams.json").read_text())}
HEAD = CosineHead(scale=100.0)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "streams.safetensors")


def run(rule: StreamRule, views: Tensor, texts: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    views = views[:, None] if views.ndim == 2 else views
    state, answer = rule.answer(rule.start(texts), HEAD.outputs(views, texts[None]), HEAD)
    return dict(state), answer.logits


def cache_rule(case: dict) -> StreamRule:
    """The rule of a case of TDA or BoostAdapter."""
    name, settings = case["id"], case["settings"]
    positive, negative = settings.get("positive", settings), settings["negative"]
    options = {
        "alpha": positive["alpha"],
        "beta": positive["beta"],
        "positive": 3 if positive.get("enabled", True) else 0,
        "negative": 2 if isinstance(negative, str) or negative["enabled"] else 0,
        "pooled": name in ("tda.views", "boost.shift.d3"),
    }
    if name.startswith("boost"):
        options |= {"delta": settings["delta"], "variant": case["status"]}
    rule = rules.get("boostadapter" if name.startswith("boost") else "tda")(**options)
    assert isinstance(rule, StreamRule)
    return rule


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("tda", "boost"))])
def test_caches_of_unlabelled_images(name: str, tensors: dict[str, Tensor]) -> None:
    case = CASES[name]
    given = {role: tensors[key] for role, key in case["inputs"].items()}
    wanted = {role: tensors[key] for role, key in case["outputs"].items()}
    views = given.get("views", given.get("images"))
    views = views[:, :1] if name == "boost.tda" else views  # without boosting
    state, logits = run(cache_rule(case), views, given["text"])
    torch.testing.assert_close(logits, wanted["logits"], atol=1e-9, rtol=0)
    for prefix, role in {"positive": "pos", "negative": "neg"}.items():
        if f"{role}_classes" in wanted:
            cache = FeatureCache.of(state, prefix)
            classes = torch.arange(len(cache.counts)).repeat_interleave(cache.counts)
            assert torch.equal(classes, wanted[f"{role}_classes"])
            ours, theirs = (_sorted(classes, entropy) for entropy in (cache.entropy, wanted[f"{role}_entropy"]))
            torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)


def _sorted(classes: Tensor, entropy: Tensor) -> Tensor:
    """Entropies by class, then by size: the published code stores some in the order of arrival."""
    return entropy[sorted(range(len(classes)), key=lambda row: (int(classes[row]), float(entropy[row])))]


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("dmn")])
def test_a_memory_of_unlabelled_images(name: str, tensors: dict[str, Tensor]) -> None:
    case, settings = CASES[name], CASES[name]["settings"]
    rule = rules.get("dmn")(memory=settings["memory"], sharpness=settings["beta"], selection=settings["rho"])
    assert isinstance(rule, StreamRule)
    state, log_probs = run(rule, tensors[case["inputs"]["views"]], tensors[case["inputs"]["text"]])
    wanted = {role: tensors[key] for role, key in case["outputs"].items()}
    mixed = (wanted["prob_text"] + wanted["prob_dynamic"]) / 2  # w is 1, and the answer a probability
    torch.testing.assert_close(log_probs.exp(), mixed, atol=1e-9, rtol=0)
    assert torch.equal(state["memory.counts"], wanted["memory_count"])


def test_a_cache_of_labelled_images(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    case = CASES["tip.base"]
    given = {role: tensors[key] for role, key in case["inputs"].items()}
    wanted = {role: tensors[key] for role, key in case["outputs"].items()}
    keys = cache_keys(given["raw_features"].transpose(0, 1))  # [epochs, N, D] -> [N, epochs, D]
    torch.testing.assert_close(keys, wanted["keys"], atol=1e-9, rtol=0)
    alpha, beta = case["values"]["best_alpha"], case["values"]["best_beta"]
    file = tmp_path / "cache.safetensors"
    save_cache(file, LabelledCache(keys, given["train_labels"], "model", "hash", alpha, beta))
    rule = rules.get("tip-adapter")(file=str(file))
    answer = rule(HEAD.outputs(given["test"][:, None], given["text"][None]), HEAD)
    torch.testing.assert_close(answer.logits, wanted["test_logits"], atol=1e-9, rtol=0)
