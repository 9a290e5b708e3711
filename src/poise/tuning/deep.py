"""Episodic tuning of MaPLe's coupled prompts: context, deep prompts and projections, with the image tower in the graph.

An objective is differentiated with respect to text and image features (and token states, for alignment); pullbacks
carry that on, one chunk of classes or views at a time. Views that the objective doesn't depend on are never computed
again: with TPT's selection, 7 of 64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews, pairs
from poise.objectives import Sum, chosen_views
from poise.objectives.alignment import WEIGHT, Alignment
from poise.tuning.adamw import AdamW
from poise.tuning.answer import make_answer, start_where, untuned_answer
from poise.tuning.step import Recipe, check_names
from poise.types import Adapted, ClassTokens, DualEncoder, Objective, Outputs, Prompt


@dataclass(frozen=True)
class _Seen:
    """B images' views under some prompts."""

    features: Tensor  # [B, V, D]
    tokens: Tensor | None  # [B, V, J, T, W], where alignment needs them


class DeepTuner:
    """Several methods over one label set, from fitted MaPLe prompts. Images come as views, not as features."""

    reads = "views"
    ordered = False

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Recipe],
        start: Coupled,
        *,
        alignment: Alignment | None = None,
        alignment_weight: float = WEIGHT,
        views_per_pass: int = 0,
    ) -> None:
        check_names(methods)
        self.encoder, self.classes, self.methods, self.start = encoder, classes, tuple(methods), start
        self.texts = ClassTexts(encoder, classes, start.text())
        layers = 0 if alignment is None else int(alignment.mean.shape[0])
        self._views = PromptedViews(encoder, tokens_of=layers, views_per_pass=views_per_pass)
        self._aligned = layers > 0
        self._objectives: dict[str, Objective] = {}
        for method in methods:
            objective = method.objective()
            if objective is not None and method.steps and len(classes) > 1:
                terms = ((1.0, objective), (alignment_weight, alignment)) if alignment else ((1.0, objective),)
                self._objectives[method.name] = Sum(terms)

    @torch.no_grad()
    def predict(self, views: Tensor) -> dict[str, Adapted]:
        """Normalised views [B, V, 3, S, S], view 0 the plain one -> each method's answer."""
        begun = self._look(views, self.start)
        texts = self.texts.init_features().expand(len(views), -1, -1)
        reference = self.encoder.logits(begun.features, texts)
        out = Outputs(begun.features, texts, reference, reference)
        return {
            method.name: self._tuned(method, views, begun, out)
            if method.name in self._objectives
            else untuned_answer(method, out, self.start.prompt())
            for method in self.methods
        }

    def _tuned(self, method: Recipe, views: Tensor, begun: _Seen, start_out: Outputs) -> Adapted:
        reference = start_out.reference_logits
        coupled, seen, texts = self.start, begun, start_out.text_features
        optimiser = AdamW(lr=method.lr, weight_decay=method.weight_decay)
        fine = torch.ones(len(views), dtype=torch.bool, device=reference.device)
        losses = []
        which = torch.empty(0, 2, dtype=torch.long)
        for step in range(method.steps):
            value, text_slope, slope, token_slope = self._slopes(method, seen, texts, reference)
            if step == 0:
                which = self._influential(method, start_out, slope, token_slope)
            gradient = self._pull(views, coupled, which, text_slope, slope, token_slope)
            coupled, optimiser = optimiser.step(coupled, gradient)
            losses.append(value)
            fine = fine & value.isfinite() & _finite(gradient) & _finite(coupled)
            seen, texts = self._look(views, coupled, which, seen), self.texts.features(coupled.text())
        logits = self.encoder.logits(seen.features, texts)
        bad = ~(fine & logits[:, 0].isfinite().all(-1))
        tuned, start = coupled.prompt().parts(), self.start.prompt().parts()
        out = Outputs(
            start_where(bad, start_out.image_features, seen.features),
            start_where(bad, start_out.text_features, texts),
            start_where(bad, reference, logits),
            reference,
        )
        prompt = Prompt(**{name: start_where(bad, start[name], part) for name, part in tuned.items()})
        return make_answer(method, out, prompt, torch.stack(losses, 1), bad)

    def _slopes(
        self, method: Recipe, seen: _Seen, texts: Tensor, reference: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The loss [B] and its gradients with respect to text features, image features and token states."""
        leaves = [texts.detach().clone().requires_grad_(), seen.features.detach().clone().requires_grad_()]
        if seen.tokens is not None:
            leaves.append(seen.tokens.detach().clone().requires_grad_())
        with torch.enable_grad():
            logits = self.encoder.logits(leaves[1], leaves[0])
            tokens = leaves[2] if seen.tokens is not None else None
            out = Outputs(leaves[1], leaves[0], logits, reference, tokens=tokens)
            value = self._objectives[method.name](out)
            slopes = torch.autograd.grad(value.sum(), leaves, materialize_grads=True)
        return value.detach(), slopes[0], slopes[1], slopes[2] if seen.tokens is not None else None

    def _influential(self, method: Recipe, out: Outputs, slope: Tensor, token_slope: Tensor | None) -> Tensor:
        """The (image, view) pairs that the loss, the target or the answer depends on; they stay over all steps."""
        mask = slope.ne(0).any(-1)
        if token_slope is not None:
            mask = mask | token_slope.flatten(2).ne(0).any(-1)
        mask[:, 0] = True
        return pairs(mask.scatter(1, chosen_views(out, method.target().selection), True))

    def _pull(
        self,
        views: Tensor,
        coupled: Coupled,
        which: Tensor,
        text_slope: Tensor,
        slope: Tensor,
        token_slope: Tensor | None,
    ) -> Coupled:
        prompt = self.texts.start if coupled is self.start else coupled.text()
        text = self.texts.pullback(prompt, text_slope)
        image, view = which.unbind(1)
        tokens = None if token_slope is None else token_slope[image, view]
        return coupled.pull(
            text, self._views.pullback(views, coupled.image_layers(), which, slope[image, view], tokens)
        )

    def _look(self, views: Tensor, coupled: Coupled, which: Tensor | None = None, before: _Seen | None = None) -> _Seen:
        """All views' features; where only some can have changed, the others' are taken from ``before``."""
        features, tokens = self._views.features(views, coupled.image_layers(), which)
        if which is None or before is None:
            shape = views.shape[:2]
            return _Seen(features.unflatten(0, shape), tokens.unflatten(0, shape) if self._aligned else None)
        image, view = which.unbind(1)
        joint, states = before.features.clone(), before.tokens
        joint[image, view] = features
        if states is not None:
            states = states.clone()
            states[image, view] = tokens
        return _Seen(joint, states)


def _finite(coupled: Coupled) -> Tensor:
    """Which images [B] have finite numbers only."""
    return torch.stack([part.isfinite().flatten(1).all(-1) for part in coupled.parts().values()]).all(0)
