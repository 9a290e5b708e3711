"""Trustworthy confidences from a few labelled images: calibrators, prediction sets and certified thresholds.

>>> from poise import calibration
>>> probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 1, 0, 0]
>>> calibration.choose(probs, labels).calibrator.name
'temperature'
"""

from poise.calibration.assess import Answers, assess
from poise.calibration.calibrators import (
    Beta,
    Calibrator,
    Temperature,
    calibrator_from,
    calibrators,
    fit_beta,
    fit_temperature,
)
from poise.calibration.certify import Certificate, certify, images_for_error, upper_bound
from poise.calibration.choice import Choice, choose
from poise.calibration.conditions import Conditions
from poise.calibration.conformal import (
    ClassQuantiles,
    PredictionSets,
    Score,
    class_quantiles,
    images_for_coverage,
    quantile,
    scores,
)
from poise.calibration.evaluation import Answered, Evaluation
from poise.calibration.stored import Calibration, MethodCalibration

__all__ = [
    "Answered",
    "Answers",
    "Beta",
    "Calibration",
    "Calibrator",
    "Certificate",
    "Choice",
    "ClassQuantiles",
    "Conditions",
    "Evaluation",
    "MethodCalibration",
    "PredictionSets",
    "Score",
    "Temperature",
    "assess",
    "calibrator_from",
    "calibrators",
    "certify",
    "choose",
    "class_quantiles",
    "fit_beta",
    "fit_temperature",
    "images_for_coverage",
    "images_for_error",
    "quantile",
    "scores",
    "upper_bound",
]
