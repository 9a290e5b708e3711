"""A small seeded CLIP with random weights, for tests and demonstrations: it classifies nothing, but runs everywhere."""

from __future__ import annotations

import math

import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones.encoder import Encoder
from poise.backbones.loaders.openclip import wrap

CONFIG = {
    "embed_dim": 32,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


def tiny_model(seed: int = 0) -> CLIP:
    """The open_clip model behind ``tiny``; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CLIP(**CONFIG)
        with torch.no_grad():
            # A fresh model's texts are nearly alike; wider token vectors make its predictions differ between labels.
            model.token_embedding.weight.mul_(10.0)
            model.positional_embedding.mul_(10.0)
            model.logit_scale.fill_(math.log(100.0))
    return model


def load_tiny(*, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Encoder:
    """The encoder called ``tiny``."""
    return wrap(tiny_model(seed), SimpleTokenizer(), {}, name="tiny", device=device, dtype=dtype)
