"""Adapting a prompt to each image, without labels."""

from __future__ import annotations

from poise.tuning.adamw import AdamW
from poise.tuning.step import Recipe, adapt
from poise.tuning.tuner import Tuner

__all__ = ["AdamW", "Recipe", "Tuner", "adapt"]
