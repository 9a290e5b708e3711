"""The episodic tuner: every image starts from the same prompt, and no image learns from another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.prompts import init_prompt
from poise.tuning.answer import make_answer, stacked, start_where, untuned_answer
from poise.tuning.step import Recipe, Slope, Tuned, adapt_all, check_names, joined
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt

_NUMBERS_TOGETHER = 1 << 25  # of the text features that images and methods treated together have


class Tuner:
    """Several methods over one label set. Image features come in once and serve them all.

    Labels are encoded when the tuner is made, and never again under the starting prompt.
    """

    reads = "features"  # what `predict` takes: features [B, V, D], or views [B, V, 3, S, S] (`DeepTuner`)
    ordered = False  # whether answers depend on the images before (`StreamTuner`)

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Recipe],
        start: Prompt | None = None,
        *,
        tokens_per_pass: int = 0,
    ) -> None:
        check_names(methods)
        self.encoder = encoder
        self.classes = classes
        self.methods = tuple(methods)
        self._slopes = {
            method.name: Slope(objective) for method in methods if (objective := method.objective()) is not None
        }
        self.texts = ClassTexts(
            encoder,
            classes,
            start or init_prompt(encoder, classes),
            tokens_per_pass=tokens_per_pass,
        )

    @torch.no_grad()
    def predict(self, image_features: Tensor) -> dict[str, Adapted]:
        """Unit features of all views [B, V, D], view 0 the plain one -> each method's answer."""
        features = image_features.to(self.encoder.device)
        # Text features are [B, C, D] for each method: with many labels, fewer images go together.
        numbers = max(1, len(self.methods)) * self.texts.init_features().numel()
        parts = [self._predict(part) for part in features.split(max(1, _NUMBERS_TOGETHER // numbers))]
        return parts[0] if len(parts) == 1 else {name: stacked([part[name] for part in parts]) for name in parts[0]}

    def _predict(self, features: Tensor) -> dict[str, Adapted]:
        reference = self.encoder.logits(features, self.texts.init_features())  # [B, V, C]
        tunable = [method for method in self.methods if self._is_tunable(method)]
        if not tunable:
            return {method.name: self._untuned(method, features, reference) for method in self.methods}
        recipes = [(method, self._slopes[method.name]) for method in tunable]
        tuned = adapt_all(recipes, self.texts, features, reference)
        texts = self.texts.features(joined([each.prompt for each in tuned])).split(len(features))
        found = {method.name: pair for method, *pair in zip(tunable, tuned, texts, strict=True)}
        return {
            method.name: self._tuned(method, features, reference, *found[method.name])
            if method.name in found
            else self._untuned(method, features, reference)
            for method in self.methods
        }

    def _is_tunable(self, method: Recipe) -> bool:
        """Whether there is something to tune: steps, an objective, and more than one class."""
        return method.steps > 0 and method.name in self._slopes and len(self.classes) > 1

    def _untuned(self, method: Recipe, features: Tensor, reference: Tensor) -> Adapted:
        texts = self.texts.init_features().expand(len(features), -1, -1)
        return untuned_answer(method, Outputs(features, texts, reference, reference), self.texts.start)

    def _tuned(self, method: Recipe, features: Tensor, reference: Tensor, tuned: Tuned, texts: Tensor) -> Adapted:
        start_texts = self.texts.init_features()
        logits = self.encoder.logits(features, texts)
        bad = ~_finite(tuned, logits)
        prompt, texts, logits = _start_where(bad, tuned.prompt, self.texts.start, texts, start_texts, logits, reference)
        return make_answer(method, Outputs(features, texts, logits, reference), prompt, tuned.losses, bad)


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
    parts = {name: start_where(bad, start.parts()[name], part) for name, part in prompt.parts().items()}
    return Prompt(**parts), start_where(bad, start_texts, texts), start_where(bad, reference, logits)
