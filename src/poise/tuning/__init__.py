"""Adapting a prompt to each image, without labels."""

from __future__ import annotations

from poise.tuning.adamw import AdamW
from poise.tuning.dynaprompt import DynaPrompt
from poise.tuning.ensemble import AnyTuner
from poise.tuning.frameworks import FRAMEWORKS, Options, make_tuner
from poise.tuning.memory import PromptMemory
from poise.tuning.step import Recipe, adapt
from poise.tuning.stream import StreamTuner
from poise.tuning.tuner import Tuner

__all__ = [
    "FRAMEWORKS",
    "AdamW",
    "AnyTuner",
    "DynaPrompt",
    "Options",
    "PromptMemory",
    "Recipe",
    "StreamTuner",
    "Tuner",
    "adapt",
    "make_tuner",
]
