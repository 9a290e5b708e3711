from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from poise.backbones import load_model
from poise.prompts import init_prompt, tokenise

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("which", [0, 1])
def test_published_code_gives_the_same_zero_shot_probabilities(which):
    golden = json.loads((GOLDEN / "zero_shot.json").read_text())
    views = load_file(GOLDEN / "plain_views.safetensors")["plain_views"].double()
    encoder = load_model(f"local-dir:{GOLDEN / 'model'}", device="cpu", dtype="float64")
    assert encoder.scale == pytest.approx(golden["scale"], rel=1e-9)
    case = golden["sets"][which]
    classes = tokenise(encoder, case["labels"], case["template"])
    text = encoder.encode_classes(classes, init_prompt(encoder, classes))
    probabilities = encoder.logits(encoder.encode_images(views[:, None]), text)[:, 0].softmax(-1)
    assert (probabilities - torch.tensor(case["zero_shot"], dtype=torch.float64)).abs().max() <= 1e-9
