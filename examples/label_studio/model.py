"""An ML backend of Label Studio: pre-annotations with calibrated scores, and none where the classifier abstains.

    pip install label-studio-ml
    POISE_CALIBRATION=calibration.json label-studio-ml start examples/label_studio

The labels are the choices of the project (`<Choices name="..." toName="..."><Choice value="cat"/>...`). With a
calibration of these labels (`poise calibrate`) and POISE_MAX_ERROR, a task gets a pre-annotation only if at most that
share of the answers is wrong; the others are left to people. Without one, every task gets the most probable choice, and
the score is not calibrated.
"""

from __future__ import annotations

import os
from functools import cached_property

from label_studio_ml.model import LabelStudioMLBase

import poise
from poise.results import Failure


class PoiseBackend(LabelStudioMLBase):
    """Answers tasks with one image each."""

    @cached_property
    def parts(self) -> tuple[str, str, str, list[str]]:
        """The names of the choices and of the image in the project, the key of the image in a task, and the labels."""
        for name, tag in self.parsed_label_config.items():
            if tag["type"] == "Choices" and tag["inputs"] and tag["inputs"][0]["type"] == "Image":
                return name, tag["to_name"][0], tag["inputs"][0]["value"], list(tag["labels"])
        raise ValueError("The project has no <Choices> of an <Image>.")

    @cached_property
    def classifier(self) -> poise.Classifier:
        calibration, error = os.environ.get("POISE_CALIBRATION"), os.environ.get("POISE_MAX_ERROR")
        options = {"device": os.environ.get("POISE_DEVICE", "auto")}
        if calibration:
            options |= {"max_error": float(error)} if error else {}
            made = poise.Classifier.from_calibration(calibration, **options)
            if sorted(made.labels) != sorted(self.parts[3]):
                raise ValueError(f"The calibration is of the labels {made.labels}, the project has {self.parts[3]}.")
            return made
        return poise.Classifier(self.parts[3], os.environ.get("POISE_MODEL", "pocket"), **options)

    def predict(self, tasks, **kwargs):
        """Return one prediction per task; its result is empty where the image can't be read or the answer abstains."""
        source, target, key, _ = self.parts
        paths = [self.get_local_path(task["data"][key]) for task in tasks]  # Label Studio's own way to its files
        found = []
        for outcome in self.classifier.each(paths):
            result = None if isinstance(outcome, Failure) else next(iter(outcome.values()))
            if result is None or result.decision == "abstain":
                found.append({"result": [], "score": 0.0 if result is None else float(result.confidence)})
                continue
            choice = {
                "from_name": source,
                "to_name": target,
                "type": "choices",
                "value": {"choices": [result.label]},
                "score": float(result.confidence),
            }
            found.append({"result": [choice], "score": float(result.confidence), "model_version": "poise"})
        return found
