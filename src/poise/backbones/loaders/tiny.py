"""A small CLIP with seeded random weights for tests and demonstrations; its predictions are meaningless."""

from __future__ import annotations

import functools
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
    """Create the open_clip model of ``tiny`` without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = CLIP(**CONFIG)
        with torch.no_grad():
            # Text features of an untrained model are nearly equal; larger embeddings make its predictions differ.
            model.token_embedding.weight.mul_(10.0)
            model.positional_embedding.mul_(10.0)
            model.logit_scale.fill_(math.log(100.0))
    return model


@functools.cache
def _tokenizer() -> SimpleTokenizer:
    """Return CLIP's tokenizer, which takes three times as long to make as the model and is never changed."""
    return SimpleTokenizer()


def load_tiny(*, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Encoder:
    """Load the encoder ``tiny``."""
    return wrap(tiny_model(seed), _tokenizer(), {}, name="tiny", device=device, dtype=dtype)
