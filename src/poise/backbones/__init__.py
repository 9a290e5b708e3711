"""Frozen CLIP-like models behind one DualEncoder: open_clip, transformers, the embedded one and a tiny one."""

from __future__ import annotations

from poise.backbones.load import describe_models, list_models, load_model, resolve

__all__ = ["describe_models", "list_models", "load_model", "resolve"]
