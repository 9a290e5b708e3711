"""An ensemble of templates, each tuned separately."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.tuning.protocol import AnyTuner
from poise.types import Answer

# The four prompts of C-TPT's comparison (Yoon et al., 2024).
TEMPLATES = ("a photo of a {}.", "a photo of the {}.", "a picture of a {}.", "a picture of the {}.")


class Ensemble:
    """Several tuners over the same labels: logits are averaged. Values that can't be averaged are the first tuner's."""

    ordered = False

    def __init__(self, members: Sequence[AnyTuner]) -> None:
        if not members or any(member.ordered or member.reads != members[0].reads for member in members):
            raise InvalidOptionError("These tuners can't be averaged.", hint="Give episodic tuners that read the same.")
        self.members = tuple(members)
        self.reads = members[0].reads
        self.texts = members[0].texts

    def predict(self, inputs: Tensor) -> dict[str, Answer[Tensor]]:
        """Return each method's answers."""
        answers = [member.predict(inputs) for member in self.members]
        return {name: _averaged([answer[name] for answer in answers]) for name in answers[0]}


def _averaged(parts: Sequence[Answer[Tensor]]) -> Answer[Tensor]:
    names = ("logits", "target_probs", "confidences", "temperatures", "losses", "text_features")
    means: dict[str, Any] = {name: torch.stack([getattr(part, name) for part in parts]).mean(0) for name in names}
    # Log-probabilities are logits minus a number per image, which softmax ignores.
    init_probs = torch.stack([part.init_probs.log() for part in parts]).mean(0).softmax(-1)
    fallback = torch.stack([part.fallback for part in parts]).any(0)
    means |= {"probs": means["logits"].softmax(-1), "init_probs": init_probs, "fallback": fallback}
    return replace(parts[0], **means)
