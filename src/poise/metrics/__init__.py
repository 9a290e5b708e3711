"""Accuracy, calibration, scoring and selective prediction: NumPy in float64, fractions and not percent.

Each metric is a plain function (``ece(confidence, correct)``) and a row that reports read: `names`, `get`, `register`.
"""

from poise.metrics.accuracy import accuracy, top_k
from poise.metrics.binning import Bins, equal_mass, equal_width
from poise.metrics.bootstrap import Interval
from poise.metrics.calibration import adaptive_ece, classwise_ece, ece, mce, sce
from poise.metrics.checks import TopLabel, top_label
from poise.metrics.rows import Metric, available, get, names, register, unregister
from poise.metrics.sample import Sample
from poise.metrics.scoring import NLL_FLOOR, brier, brier_each, nll, nll_each
from poise.metrics.selective import RiskCoverage, aurc, risk_coverage
from poise.metrics.summary import Estimate, estimate

__all__ = [
    "NLL_FLOOR",
    "Bins",
    "Estimate",
    "Interval",
    "Metric",
    "RiskCoverage",
    "Sample",
    "TopLabel",
    "accuracy",
    "adaptive_ece",
    "aurc",
    "available",
    "brier",
    "brier_each",
    "classwise_ece",
    "ece",
    "equal_mass",
    "equal_width",
    "estimate",
    "get",
    "mce",
    "names",
    "nll",
    "nll_each",
    "register",
    "risk_coverage",
    "sce",
    "top_k",
    "top_label",
    "unregister",
]
