"""Objectives that a prompt is tuned by: losses against a target made of the views, and regularisers of the texts."""

from __future__ import annotations

import importlib
import pkgutil

from poise.objectives.alignment import Alignment
from poise.objectives.base import Sum, objectives
from poise.objectives.dispersion import Dispersion, mean_distance_to_centroid
from poise.objectives.losses import CrossEntropy, Divergence, Entropy
from poise.objectives.orthogonality import Orthogonality
from poise.objectives.targets import ConfidenceTemperature, Target, select_views, view_entropy

__all__ = [
    "Alignment",
    "ConfidenceTemperature",
    "CrossEntropy",
    "Dispersion",
    "Divergence",
    "Entropy",
    "Orthogonality",
    "Sum",
    "Target",
    "mean_distance_to_centroid",
    "objectives",
    "select_views",
    "view_entropy",
]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")  # a new file registers its objectives
