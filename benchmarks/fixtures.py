"""open_clip models with random weights."""

from __future__ import annotations

import copy
import math

import open_clip
import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones.encoder import Encoder
from poise.backbones.loaders.openclip import wrap


def random_clip(name: str, seed: int = 0) -> CLIP:
    """Return the open_clip architecture ``name`` with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CLIP(**{key: value for key, value in open_clip.get_model_config(name).items() if key != "custom_text"})
        with torch.no_grad():
            # Text features of a new model hardly differ; larger token vectors make its predictions depend on the label.
            model.token_embedding.weight.mul_(10.0)
            model.positional_embedding.mul_(10.0)
            model.logit_scale.fill_(math.log(100.0))
    return model.eval().requires_grad_(False)


def encoder_of(model: CLIP, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Return the encoder of a copy of the model."""
    return wrap(copy.deepcopy(model), SimpleTokenizer(), {}, name="random weights", device=device, dtype=dtype)
