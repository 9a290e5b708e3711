"""Image to views: view 0 is the plain picture, the others are keyed random crops, with AugMix where asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from poise.views.plan import AugMixPlan, ViewPlan, plan_views
from poise.views.recipe import DEFAULT_ENGINE, ViewRecipe

if TYPE_CHECKING:
    from poise.views.pil.crops import make_views
    from poise.views.torch.batched import make_views_batched

__all__ = [
    "DEFAULT_ENGINE",
    "AugMixPlan",
    "ViewPlan",
    "ViewRecipe",
    "make_views",
    "make_views_batched",
    "plan_views",
]

_HOMES = {"make_views": "poise.views.pil.crops", "make_views_batched": "poise.views.torch.batched"}


def __getattr__(name: str) -> object:
    """Import on first use: planning views needs no torch, and the processes that read pictures do without."""
    if name not in _HOMES:
        raise AttributeError(f"module 'poise.views' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)
