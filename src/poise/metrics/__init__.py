"""Accuracy, calibration, scoring and selective prediction: pure functions, NumPy float64, fractions not percent."""

from poise.metrics.accuracy import accuracy, in_top, top_k
from poise.metrics.binning import Bins, assign, edges, equal_mass, equal_width
from poise.metrics.bootstrap import Interval
from poise.metrics.calibration import adaptive_ece, classwise_ece, ece, mce, sce
from poise.metrics.checks import TopLabel, top_label
from poise.metrics.scoring import NLL_FLOOR, brier, brier_each, nll, nll_each
from poise.metrics.selective import RiskCoverage, aurc, risk_coverage
from poise.metrics.summary import NAMES, Sample, Summary, draws_over_seeds, mean_over_seeds, summarise

__all__ = [
    "NAMES",
    "NLL_FLOOR",
    "Bins",
    "Interval",
    "RiskCoverage",
    "Sample",
    "Summary",
    "TopLabel",
    "accuracy",
    "adaptive_ece",
    "assign",
    "aurc",
    "brier",
    "brier_each",
    "classwise_ece",
    "draws_over_seeds",
    "ece",
    "edges",
    "equal_mass",
    "equal_width",
    "in_top",
    "mce",
    "mean_over_seeds",
    "nll",
    "nll_each",
    "risk_coverage",
    "sce",
    "summarise",
    "top_k",
    "top_label",
]
