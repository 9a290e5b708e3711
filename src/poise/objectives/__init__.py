"""What a prompt is tuned to minimise: losses against a target made of the views, and regularisers of the texts."""

from __future__ import annotations

from poise.objectives.base import Sum, objectives, text_only
from poise.objectives.dispersion import Dispersion, mean_distance_to_centroid
from poise.objectives.divergence import CrossEntropy, Divergence
from poise.objectives.entropy import Entropy
from poise.objectives.orthogonality import Orthogonality
from poise.objectives.targets import ConfidenceTemperature, Target, chosen_views, select_views, view_entropy

__all__ = [
    "ConfidenceTemperature",
    "CrossEntropy",
    "Dispersion",
    "Divergence",
    "Entropy",
    "Orthogonality",
    "Sum",
    "Target",
    "chosen_views",
    "mean_distance_to_centroid",
    "objectives",
    "select_views",
    "text_only",
    "view_entropy",
]
