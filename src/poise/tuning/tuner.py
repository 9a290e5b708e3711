"""The episodic tuner: every image starts from the same prompt, and no image learns from another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poise.errors import InvalidOption
from poise.forward import ClassTexts
from poise.objectives import select_views
from poise.prompts import start_prompt
from poise.tuning.step import Recipe, Slope, Tuned, adapt
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt


class Tuner:
    """Several methods over one label set. Image features come in once and serve them all.

    Labels are encoded when the tuner is made, and never again under the starting prompt.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Recipe],
        start: Prompt | None = None,
        *,
        tokens_per_pass: int = 0,
    ) -> None:
        names = [method.name for method in methods]
        if len(set(names)) < len(names):
            raise InvalidOption(f"Methods {names} repeat a name.", hint="Give each method a name of its own.")
        self.encoder = encoder
        self.classes = classes
        self.methods = tuple(methods)
        self.texts = ClassTexts(
            encoder, classes, start or start_prompt(encoder, classes), tokens_per_pass=tokens_per_pass
        )
        self._slopes = {
            method.name: Slope(objective) for method in methods if (objective := method.objective()) is not None
        }

    @torch.no_grad()
    def predict(self, image_features: Tensor) -> dict[str, Adapted]:
        """Unit features of all views [B, V, D], view 0 the plain one -> each method's answer."""
        features = image_features.to(self.encoder.device)
        reference = self.encoder.logits(features, self.texts.start_features())  # [B, V, C]
        return {method.name: self._answer(method, features, reference) for method in self.methods}

    def _answer(self, method: Recipe, features: Tensor, reference: Tensor) -> Adapted:
        target = method.target()
        start_texts = self.texts.start_features()
        tuned = self._tune(method, features, reference)
        if tuned is None:
            count = len(features)
            logits, texts = reference, start_texts.expand(count, -1, -1)
            prompt = self.texts.start.map(lambda part: part.expand(count, *part.shape[1:]))
            losses, bad = reference.new_zeros(count, 0), torch.zeros(count, dtype=torch.bool, device=features.device)
        else:
            prompt, losses = tuned.prompt, tuned.losses
            texts = self.texts.features(prompt)
            logits = self.encoder.logits(features, texts)
            bad = ~_finite(tuned, logits)
            prompt, texts, logits = _start_where(bad, prompt, self.texts.start, texts, start_texts, logits, reference)
        target_probs = target.log_probs(Outputs(features, texts, logits, reference)).exp()
        return Adapted(
            logits=logits[:, 0],
            probs=logits[:, 0].softmax(-1),
            start_probs=reference[:, 0].softmax(-1),
            target_probs=target_probs,
            confidences=reference.softmax(-1).amax(-1),
            temperatures=target.temperatures(reference),
            selected=select_views(reference, target.selection),
            losses=losses,
            fallback=bad,
            prompt=prompt,
            text_features=texts,
        )

    def _tune(self, method: Recipe, features: Tensor, reference: Tensor) -> Tuned | None:
        """The tuned prompts; None where there is nothing to tune: no steps, no objective, or a single class."""
        if method.steps == 0 or method.name not in self._slopes or len(self.classes) == 1:
            return None
        return adapt(method, self._slopes[method.name], self.texts, features, reference)


def _finite(tuned: Tuned, logits: Tensor) -> Tensor:
    """Which images [B] stayed finite in every loss, gradient, prompt and plain-view logit."""
    fine = tuned.losses.isfinite().all(-1) & logits[:, 0].isfinite().all(-1)
    for prompt in (*tuned.gradients, tuned.prompt):
        for part in prompt.parts().values():
            fine = fine & part.isfinite().flatten(1).all(-1)
    return fine


def _start_where(
    bad: Tensor, prompt: Prompt, start: Prompt, texts: Tensor, start_texts: Tensor, logits: Tensor, reference: Tensor
) -> tuple[Prompt, Tensor, Tensor]:
    """The starting prompt and all that follows from it, for the images whose tuning went wrong."""

    def chosen(original: Tensor, value: Tensor) -> Tensor:
        return torch.where(bad.reshape(-1, *[1] * (value.ndim - 1)), original, value)

    parts = {name: chosen(start.parts()[name], part) for name, part in prompt.parts().items()}
    return Prompt(**parts), chosen(start_texts, texts), chosen(reference, logits)
