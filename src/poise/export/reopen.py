"""Opens an exported file as a classifier of poise, with the labels, views and calibration that it was exported with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from poise import methods
from poise.backbones.loaders.onnx_file import OnnxFile, read_onnx
from poise.calibration import Calibration, Conditions
from poise.calibration.independent import IndependentCalibration
from poise.calibration.stored import INDEPENDENT, plain
from poise.errors import InvalidCheckpointError, PoiseError
from poise.inference.classifier import Classifier
from poise.options import AnswerOptions, option_values, promise_rows


def open_onnx(path: str | Path, **options: Any) -> Classifier[Any]:
    """Return the classifier of a file that `export_onnx` wrote; onnxruntime runs its image tower.

    Args:
        path: the file.
        options: options of `poise.Classifier` that replace those of the file, such as ``coverage``.
    """
    return Classifier(**(onnx_options(path) | options))


def onnx_options(path: str | Path) -> dict[str, Any]:
    """Return the options of `poise.Classifier` that a file was exported with."""
    file = read_onnx(path)
    facts = file.metadata
    conditions, calibration = _stored(file)
    method = methods.get(facts["method"])
    if plain(method.settings()) != facts["settings"]:
        raise InvalidCheckpointError(
            f"'{path}' was exported with other settings of the method '{method.name}'.",
            hint="Use the version of poise that exported it, or export it again.",
        )
    return {
        **option_values(conditions, AnswerOptions),
        "init": "template",  # the text features contain it
        "model": f"onnx:{path}",
        "method": method.name,
        "device": "cpu",
        "calibration": calibration,
        **{row.name: facts.get(row.name) for row in promise_rows()},
    }


def _stored(file: OnnxFile) -> tuple[Conditions, Calibration | IndependentCalibration | None]:
    """Return the conditions, and the calibration if there is one; the init is already part of the text features."""
    facts = file.metadata
    try:
        conditions = Conditions.from_dict(facts["conditions"])
        if list(conditions.labels) != facts["labels"] or conditions.template != facts["template"]:
            raise ValueError("its labels differ from those of its conditions")
        if facts.get("calibration") is None:
            return conditions, None
        independent = facts["calibration"]["format"] == INDEPENDENT
        calibration = (IndependentCalibration if independent else Calibration).from_dict(facts["calibration"])
    except (PoiseError, KeyError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as problem:
        hint = "Give a file that `poise export onnx` wrote."
        raise InvalidCheckpointError(f"'{file.path}' is refused: {str(problem)[:200]}.", hint=hint) from None
    now = replace(calibration.conditions, init="template", init_hash="")
    return conditions, replace(calibration, conditions=now)
