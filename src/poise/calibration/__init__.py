"""Trustworthy confidences from a few labelled images: a calibrator, prediction sets and certified thresholds.

>>> from poise import calibration
>>> probs, labels = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]], [0, 1, 0, 0]
>>> fit = calibration.fit_calibrator(probs, labels)
>>> fit.calibrator.apply([[0.9, 0.1]]).argmax(1).tolist()
[0]
"""

from poise.calibration.applied import Applied
from poise.calibration.assess import Answers, assess
from poise.calibration.calibrators import Calibrator, Curve, calibrator_from
from poise.calibration.certify import Certificate, certify, images_for_error, upper_bound
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
from poise.calibration.independent import IndependentCalibration, LabelFit, LabelThresholds, fit_labels
from poise.calibration.label_evaluation import LabelEvaluation
from poise.calibration.monitor import Monitor
from poise.calibration.numbers import calibrate_probabilities, probabilities_of_features, probabilities_of_logits
from poise.calibration.plan import Drawn, Plan, plan_labels
from poise.calibration.posterior import Fit, fit_calibrator, held_out
from poise.calibration.stored import Calibration, MethodCalibration
from poise.calibration.tree import Tree
from poise.calibration.truth_monitor import TruthMonitor

__all__ = [
    "Answered",
    "Answers",
    "Applied",
    "Calibration",
    "Calibrator",
    "Certificate",
    "ClassQuantiles",
    "Conditions",
    "Curve",
    "Drawn",
    "Evaluation",
    "Fit",
    "IndependentCalibration",
    "LabelEvaluation",
    "LabelFit",
    "LabelThresholds",
    "MethodCalibration",
    "Monitor",
    "Plan",
    "PredictionSets",
    "Score",
    "Tree",
    "TruthMonitor",
    "assess",
    "calibrate_probabilities",
    "calibrator_from",
    "certify",
    "class_quantiles",
    "fit_calibrator",
    "fit_labels",
    "held_out",
    "images_for_coverage",
    "images_for_error",
    "plan_labels",
    "probabilities_of_features",
    "probabilities_of_logits",
    "quantile",
    "scores",
    "upper_bound",
]
