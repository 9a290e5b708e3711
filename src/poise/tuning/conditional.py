"""Episodic tuning from a start that follows the image: CoCoOp's context, made once from the plain view."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.prompts.conditional import Conditional
from poise.tuning.adamw import AdamW
from poise.tuning.answer import make_answer, start_where
from poise.tuning.step import Recipe, differentiate
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt


class ConditionalTuner:
    """Several methods over one label set; every image has a start of its own, so its texts are encoded for it alone."""

    reads = "features"
    ordered = False

    def __init__(
        self, encoder: DualEncoder, classes: ClassTokens, methods: Sequence[Recipe], start: Conditional
    ) -> None:
        self.encoder, self.classes, self.methods, self.start = encoder, classes, tuple(methods), start
        self.texts = ClassTexts(encoder, classes, Prompt(start.context[None]))

    @torch.no_grad()
    def predict(self, image_features: Tensor) -> dict[str, Adapted]:
        """Unit features of all views [B, V, D], view 0 the plain one -> each method's answer."""
        features = image_features.to(self.encoder.device)
        start = self.start.prompt(features[:, 0].to(self.start.context.dtype))
        texts = self.texts.features(start)
        reference = self.encoder.logits(features, texts)
        begun = Outputs(features, texts, reference, reference)
        return {method.name: self._answer(method, start, begun) for method in self.methods}

    def _answer(self, method: Recipe, start: Prompt, begun: Outputs) -> Adapted:
        objective, reference = method.objective(), begun.reference_logits
        fine = torch.ones(len(start), dtype=torch.bool, device=reference.device)
        if objective is None or not method.steps or len(self.classes) == 1:
            return make_answer(method, begun, start, reference.new_zeros(len(start), 0), ~fine)

        def outputs(texts: Tensor) -> Outputs:
            logits = self.encoder.logits(begun.image_features, texts)
            return Outputs(begun.image_features, texts, logits, reference)

        prompt, texts, losses = start, begun.text_features, []
        optimiser = AdamW(lr=method.lr, weight_decay=method.weight_decay)
        for _ in range(method.steps):
            value, cotangent = differentiate(objective, texts, outputs)
            gradient = self.texts.pullback(prompt, cotangent)
            prompt, optimiser = optimiser.step(prompt, gradient)
            texts = self.texts.features(prompt)
            losses.append(value)
            fine = fine & value.isfinite() & prompt.context.isfinite().flatten(1).all(-1)
        bad = ~(fine & outputs(texts).logits[:, 0].isfinite().all(-1))
        out = outputs(start_where(bad, begun.text_features, texts))
        kept = Prompt(start_where(bad, start.context, prompt.context))
        return make_answer(method, out, kept, torch.stack(losses, 1), bad)
