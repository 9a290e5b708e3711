"""Models with random weights, in open_clip's architectures."""

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
    """The named open_clip architecture with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CLIP(**{key: value for key, value in open_clip.get_model_config(name).items() if key != "custom_text"})
        with torch.no_grad():
            # A fresh model's texts are nearly alike; wider token vectors make its predictions differ between labels.
            model.token_embedding.weight.mul_(10.0)
            model.positional_embedding.mul_(10.0)
            model.logit_scale.fill_(math.log(100.0))
    return model.eval().requires_grad_(False)


def encoder_of(model: CLIP, device: torch.device, dtype: torch.dtype) -> Encoder:
    """A copy of the model as poise runs it."""
    return wrap(copy.deepcopy(model), SimpleTokenizer(), {}, name="random weights", device=device, dtype=dtype)
