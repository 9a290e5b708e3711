"""Augmented views of images: view 0 is the plain image, the others are random crops, optionally with AugMix."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from poise.views.plan import AugMixPlan, ViewPlan, plan_views
from poise.views.recipe import DEFAULT_ENGINE, ENGINES, ViewRecipe

if TYPE_CHECKING:
    from poise.views.batched import make_views_batched
    from poise.views.pil.crops import make_views

__all__ = [
    "DEFAULT_ENGINE",
    "ENGINES",
    "AugMixPlan",
    "ViewPlan",
    "ViewRecipe",
    "make_views",
    "make_views_batched",
    "plan_views",
]

_MODULES = {"make_views": "poise.views.pil.crops", "make_views_batched": "poise.views.batched"}


def __getattr__(name: str) -> object:
    """Import on first use, so that processes that only read images and plan views do not import torch."""
    if name not in _MODULES:
        raise AttributeError(f"module 'poise.views' has no attribute '{name}'")
    return getattr(importlib.import_module(_MODULES[name]), name)
