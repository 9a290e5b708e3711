"""Frozen CLIP-like models: open_clip, transformers, the embedded ``pocket`` and the random ``tiny``."""

from __future__ import annotations

from poise.backbones.load import describe_models, list_models, load_model
from poise.backbones.placement import resolve

__all__ = ["describe_models", "list_models", "load_model", "resolve"]
