"""Post-hoc temperature scaling: the temperature T that makes held-out labels most likely (Guo et al., 2017).

The negative log-likelihood of softmax(β z) is convex in β = 1 / T, so it has one minimum, where its derivative is 0.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.tuning.protocol import AnyTuner
from poise.types import Adapted

_BOUNDS = (1e-4, 1e4)  # of β


def fit(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature that minimises the negative log-likelihood.

    Args:
        logits: logits [N, C] of held-out images.
        labels: their classes [N].
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or not len(labels):
        raise InvalidOptionError(
            f"Logits of shape {list(logits.shape)} came with labels of shape {list(labels.shape)}.",
            hint="Give logits [images, classes] and one label for each image.",
        )
    wide = logits.double()
    wide = wide - wide.amax(-1, keepdim=True)
    correct = wide.gather(1, labels[:, None])[:, 0]

    def derivative(beta: float) -> float:
        return float(((beta * wide).softmax(-1) * wide).sum(-1).mean() - correct.mean())

    low, high = _BOUNDS
    if derivative(low) >= 0 or derivative(high) <= 0:
        raise InvalidOptionError(
            "No temperature between 0.0001 and 10000 is best for these logits.",
            hint="All predictions are right, or none is better than chance: give more held-out images.",
        )
    while high / low > 1 + 1e-12:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if derivative(middle) < 0 else (low, middle)
    return 1 / (low * high) ** 0.5


def negative_log_likelihood(logits: Tensor, labels: Tensor, temperature: float = 1.0) -> float:
    """Return the mean over N images, for logits [N, C] and labels [N]."""
    return float(torch.nn.functional.cross_entropy(logits.double() / temperature, labels))


class Tempered:
    """A tuner whose logits are divided by a temperature that was fitted on held-out labels."""

    def __init__(self, tuner: AnyTuner, temperature: float) -> None:
        self.tuner, self.temperature = tuner, temperature
        self.reads, self.ordered, self.texts = tuner.reads, tuner.ordered, tuner.texts

    def predict(self, inputs: Tensor) -> dict[str, Adapted]:
        """Return each method's answers; the predicted classes are those of the tuner."""
        answers = {}
        for name, answer in self.tuner.predict(inputs).items():
            logits = answer.logits / self.temperature
            init_probs = (answer.init_probs.log() / self.temperature).softmax(-1)
            answers[name] = replace(answer, logits=logits, probs=logits.softmax(-1), init_probs=init_probs)
        return answers
