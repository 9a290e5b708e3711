"""Augmented views of images: view 0 is the plain image, the others are random crops, optionally with AugMix."""

from __future__ import annotations

from poise.views.plan import AugMixPlan, ViewPlan, plan_views
from poise.views.recipe import DEFAULT_ENGINE, ENGINES, ViewRecipe

__all__ = ["DEFAULT_ENGINE", "ENGINES", "AugMixPlan", "ViewPlan", "ViewRecipe", "plan_views"]
