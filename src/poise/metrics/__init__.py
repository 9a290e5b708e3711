"""Accuracy, calibration, scoring and selective prediction in NumPy float64; fractions, not percent.

Each metric is a plain function (``ece(confidence, correct)``) and a row that reports read (`names`, `get`, `register`).
"""

from poise.metrics.binning import Bins, equal_mass, equal_width
from poise.metrics.bootstrap import Estimate, Interval, estimate
from poise.metrics.calibration import adaptive_ece, classwise_ece, ece, mce, sce
from poise.metrics.decisions import answered_error, classwise_coverage
from poise.metrics.floor import ece_floor
from poise.metrics.gap import confidence_gap, gap_p_value
from poise.metrics.outside import fpr95, outside_auroc
from poise.metrics.rows import Metric, available, get, names, register, unregister
from poise.metrics.sample import Sample
from poise.metrics.scoring import NLL_FLOOR, accuracy, brier, nll, top_k
from poise.metrics.selective import RiskCoverage, aurc, auroc, risk_coverage

__all__ = [
    "NLL_FLOOR",
    "Bins",
    "Estimate",
    "Interval",
    "Metric",
    "RiskCoverage",
    "Sample",
    "accuracy",
    "adaptive_ece",
    "answered_error",
    "aurc",
    "auroc",
    "available",
    "brier",
    "classwise_coverage",
    "classwise_ece",
    "confidence_gap",
    "ece",
    "ece_floor",
    "equal_mass",
    "equal_width",
    "estimate",
    "fpr95",
    "gap_p_value",
    "get",
    "mce",
    "names",
    "nll",
    "outside_auroc",
    "register",
    "risk_coverage",
    "sce",
    "top_k",
    "unregister",
]
