"""Numbers of the published CoOp and CoCoOp code on a small random CLIP in float64, equalled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import load_file

from poise.backbones.loaders.openclip import wrap
from poise.encoding.class_texts import ClassTexts
from poise.inits import cocoop, coop
from poise.prompts import tokenise
from poise.prompts.conditional import PARTS, Conditional
from poise.types import DualEncoder, Prompt

GOLDEN = Path(__file__).parents[1] / "golden"
FACTS = json.loads((GOLDEN / "coop.json").read_text())
TENSORS = load_file(GOLDEN / "coop.safetensors")
LABELS = [name.replace("_", " ") for name in FACTS["classes"]]
TARGETS = torch.arange(6)
CLOSE = {"atol": 1e-10, "rtol": 1e-10}


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    model = CLIP(**FACTS["model"])
    stored = {name.removeprefix("text/"): tensor for name, tensor in TENSORS.items() if name.startswith("text/")}
    ids, rows = stored.pop("token_ids").long(), stored.pop("token_rows").float()
    model.load_state_dict({name: tensor.float() for name, tensor in stored.items()}, strict=False)
    with torch.no_grad():
        model.token_embedding.weight.zero_()[ids] = rows
    return wrap(model, SimpleTokenizer(), {}, name="golden", device=torch.device("cpu"), dtype=torch.float64)


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    return torch.nn.functional.normalize(TENSORS["coop/features"], dim=-1)


@pytest.mark.parametrize("name", FACTS["coop"])
def test_coop(encoder, features, name) -> None:
    context, position = TENSORS[f"coop/{name}/ctx"], FACTS["coop"][name]["position"]
    tokens = context.shape[-2]
    words = "a photo of a" if name == "words" else ""
    classes, _, _ = coop.initial_context(encoder, LABELS, coop.Shape(tokens=tokens, position=position, words=words), 1)
    texts = ClassTexts(encoder, classes, Prompt(context[None]))
    logits = encoder.logits(features[None], texts.init_features())[0]
    torch.testing.assert_close(logits, TENSORS[f"coop/{name}/logits"], **CLOSE)
    loss, gradient = coop.loss_and_gradient(texts, context, features, TARGETS)
    assert float(loss) == pytest.approx(float(TENSORS[f"coop/{name}/loss"]), abs=1e-10)
    torch.testing.assert_close(gradient, TENSORS[f"coop/{name}/grad"], **CLOSE)


def test_cocoop(encoder, features) -> None:
    given = {name: TENSORS[f"cocoop/given/{name}"] for name in PARTS}
    prompt = Conditional(**given).prompt(features)
    torch.testing.assert_close(prompt.context, TENSORS["cocoop/contexts"], **CLOSE)
    texts = ClassTexts(encoder, tokenise(encoder, LABELS), Prompt(given["context"][None]))
    logits = encoder.logits(features[:, None], texts.features(prompt))[:, 0]
    torch.testing.assert_close(logits, TENSORS["cocoop/logits"], **CLOSE)
    loss, gradient = cocoop.loss_and_gradient(texts, given, features, TARGETS)
    assert loss == pytest.approx(float(TENSORS["cocoop/loss"]), abs=1e-10)
    for name, found in gradient.items():
        torch.testing.assert_close(found, TENSORS[f"cocoop/gradient/{name}"], **CLOSE)
