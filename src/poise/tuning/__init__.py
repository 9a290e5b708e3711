"""Adapting a prompt to each image, without labels."""

from __future__ import annotations

from poise.adamw import AdamW
from poise.tuning.dynaprompt import DynaPrompt
from poise.tuning.episodic import Tuner
from poise.tuning.frameworks import make_tuner
from poise.tuning.loop import adapt
from poise.tuning.memory import PromptMemory
from poise.tuning.protocol import AnyTuner
from poise.tuning.stream import StreamTuner

__all__ = [
    "AdamW",
    "AnyTuner",
    "DynaPrompt",
    "PromptMemory",
    "StreamTuner",
    "Tuner",
    "adapt",
    "make_tuner",
]
