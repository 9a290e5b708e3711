"""The episodic tuner: every image starts from the same prompt, and no image learns from another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from poise.errors import InvalidOption
from poise.forward import ClassTexts
from poise.objectives import select_views
from poise.prompts import start_prompt
from poise.tuning.step import Recipe, Slope, Tuned, adapt_all, joined
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt

_NUMBERS_TOGETHER = 1 << 25  # of the text features that images and methods treated together have


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
        expected_images: int = 0,
    ) -> None:
        """``expected_images``: about how many will come; many make it pay to prepare more (see `poise.jacobian`)."""
        names = [method.name for method in methods]
        if len(set(names)) < len(names):
            raise InvalidOption(f"Methods {names} repeat a name.", hint="Give each method a name of its own.")
        self.encoder = encoder
        self.classes = classes
        self.methods = tuple(methods)
        self._slopes = {
            method.name: Slope(objective) for method in methods if (objective := method.objective()) is not None
        }
        self.texts = ClassTexts(
            encoder,
            classes,
            start or start_prompt(encoder, classes),
            tokens_per_pass=tokens_per_pass,
            expected=expected_images * sum(map(self._is_tunable, methods)),
        )

    @torch.no_grad()
    def predict(self, image_features: Tensor) -> dict[str, Adapted]:
        """Unit features of all views [B, V, D], view 0 the plain one -> each method's answer."""
        features = image_features.to(self.encoder.device)
        # Text features are [B, C, D] for each method: with many labels, fewer images go together.
        numbers = max(1, len(self.methods)) * self.texts.start_features().numel()
        parts = [self._predict(part) for part in features.split(max(1, _NUMBERS_TOGETHER // numbers))]
        return parts[0] if len(parts) == 1 else {name: _stacked([part[name] for part in parts]) for name in parts[0]}

    def _predict(self, features: Tensor) -> dict[str, Adapted]:
        reference = self.encoder.logits(features, self.texts.start_features())  # [B, V, C]
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
        count = len(features)
        texts = self.texts.start_features().expand(count, -1, -1)
        prompt = self.texts.start.map(lambda part: part.expand(count, *part.shape[1:]))
        losses, bad = reference.new_zeros(count, 0), torch.zeros(count, dtype=torch.bool, device=features.device)
        return self._answer(method, Outputs(features, texts, reference, reference), prompt, losses, bad)

    def _tuned(self, method: Recipe, features: Tensor, reference: Tensor, tuned: Tuned, texts: Tensor) -> Adapted:
        start_texts = self.texts.start_features()
        logits = self.encoder.logits(features, texts)
        bad = ~_finite(tuned, logits)
        prompt, texts, logits = _start_where(bad, tuned.prompt, self.texts.start, texts, start_texts, logits, reference)
        return self._answer(method, Outputs(features, texts, logits, reference), prompt, tuned.losses, bad)

    def _answer(self, method: Recipe, out: Outputs, prompt: Prompt, losses: Tensor, bad: Tensor) -> Adapted:
        target, reference = method.target(), out.reference_logits
        return Adapted(
            logits=out.logits[:, 0],
            probs=out.logits[:, 0].softmax(-1),
            start_probs=reference[:, 0].softmax(-1),
            target_probs=target.log_probs(out).exp(),
            confidences=reference.softmax(-1).amax(-1),
            temperatures=target.temperatures(reference),
            selected=select_views(reference, target.selection),
            losses=losses,
            fallback=bad,
            prompt=prompt,
            text_features=out.text_features,
        )


def _stacked(parts: Sequence[Adapted]) -> Adapted:
    """One method's answers for several groups of images, as one."""
    joint = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in (entry.name for entry in fields(Adapted))
        if name != "prompt"
    }
    return Adapted(prompt=joined([part.prompt for part in parts]), **joint)


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
