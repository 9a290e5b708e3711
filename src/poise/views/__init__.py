"""Image to views: view 0 is the plain picture, the others are keyed random crops, with AugMix where asked for."""

from __future__ import annotations

from poise.views.crops import make_views
from poise.views.plan import AugMixPlan, ViewPlan, plan_views
from poise.views.resample import make_views_batched

__all__ = ["AugMixPlan", "ViewPlan", "make_views", "make_views_batched", "plan_views"]
