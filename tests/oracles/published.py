"""The model and the numbers of the published frameworks' code, from tests/golden: see `frameworks.json`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import load_file
from torch import Tensor

from poise.backbones.encoder import Encoder
from poise.backbones.loaders.openclip import wrap

GOLDEN = Path(__file__).parents[1] / "golden"


@cache
def facts() -> dict[str, Any]:
    """Settings, orders and picks."""
    return json.loads((GOLDEN / "frameworks.json").read_text())


@cache
def tensors(prefix: str) -> dict[str, Tensor]:
    """All tensors below ``prefix``, in float64, without it; memory and gradients of a few images only."""
    stored = load_file(GOLDEN / "frameworks.safetensors")
    return {
        name.removeprefix(prefix): part.double() if part.is_floating_point() else part
        for name, part in stored.items()
        if name.startswith(prefix)
    }


@cache
def encoder() -> Encoder:
    """The random CLIP that the published code was run on, in float64."""
    weights = dict(tensors("model/"))
    ids, rows = weights.pop("token_ids").long(), weights.pop("token_rows")
    model = CLIP(**facts()["model"]["model_cfg"]).double()
    weights["token_embedding.weight"] = torch.zeros_like(model.token_embedding.weight).index_copy(0, ids, rows)
    model.load_state_dict(weights)
    cpu = torch.device("cpu")
    return wrap(model, SimpleTokenizer(), {}, name="published", device=cpu, dtype=torch.float64)
