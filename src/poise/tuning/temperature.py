"""A tuner whose logits are divided by one temperature."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from poise.tuning.protocol import AnyTuner
from poise.types import Answer


class Tempered:
    """A tuner whose logits are divided by a temperature that was fitted on held-out labels."""

    def __init__(self, tuner: AnyTuner, temperature: float) -> None:
        self.tuner, self.temperature = tuner, temperature
        self.reads, self.ordered, self.texts = tuner.reads, tuner.ordered, tuner.texts

    def predict(self, inputs: Tensor) -> dict[str, Answer[Tensor]]:
        """Return each method's answers; the predicted classes are those of the tuner."""
        answers = {}
        for name, answer in self.tuner.predict(inputs).items():
            logits = answer.logits / self.temperature
            init_probs = (answer.init_probs.log() / self.temperature).softmax(-1)
            answers[name] = replace(answer, logits=logits, probs=logits.softmax(-1), init_probs=init_probs)
        return answers
