"""Episodic tuning of MaPLe's coupled prompts: context, deep prompts and projections, with the image tower in the graph.

Gradients with respect to image features and token states come back through the image tower one chunk of views at a
time. Views that the objective doesn't depend on are never computed again: with TPT's selection, 7 of 64 are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews, pairs
from poise.methods import Method
from poise.tuning.episodic import EpisodicTuner
from poise.tuning.gradient import Features, ObjectiveGradient
from poise.tuning.loop import Problem, SharedInit
from poise.types import ClassTokens, DualEncoder, Outputs, Prompt


class CoupledProblem:
    """Prompts of both towers are tuned, so texts and views follow them."""

    def __init__(
        self,
        encoder: DualEncoder,
        method: Method,
        objective: ObjectiveGradient | None,
        tower: PromptedViews,
        views: Tensor,
        init: Coupled,
        init_features: Features,
    ) -> None:
        self.method, self.objective, self.init_features = method, objective, init_features
        self.init, self.init_prompt = SharedInit(init), init.prompt()
        self._encoder, self._tower, self._views = encoder, tower, views  # views: [B, V, 3, S, S]
        images, texts = init_features.images, init_features.texts
        assert images is not None
        logits = encoder.logits(images, texts)
        texts = texts.expand(len(images), -1, -1)
        self.untuned = Outputs(images, texts, logits, logits, tokens=init_features.tokens)
        self._which: Tensor | None = None  # the (image, view) pairs [n, 2] that matter, fixed by the first gradient

    def text_prompt(self, parameters: Coupled) -> Prompt:
        """The text tower's share."""
        return parameters.text()

    def features(self, parameters: Coupled, texts: Tensor) -> Features:
        """The pairs that matter, seen again; the others as they were under the init."""
        init = self.init_features
        assert self._which is not None
        assert init.images is not None
        found, states = self._tower.features(self._views, parameters.image_layers(), self._which)
        image, view = self._which.unbind(1)
        images, tokens = init.images.clone(), init.tokens
        images[image, view] = found
        if tokens is not None:
            tokens = tokens.clone()
            tokens[image, view] = states
        return Features(texts, images, tokens)

    def outputs(self, features: Features) -> Outputs:
        """Under other texts and views."""
        assert features.images is not None
        logits = self._encoder.logits(features.images, features.texts)
        return Outputs(features.images, features.texts, logits, self.untuned.logits, tokens=features.tokens)

    def gradient(self, parameters: Coupled, cotangent: Features, text_gradient: Prompt) -> Coupled:
        """Through the image tower for the pairs that matter, and then through the projections."""
        assert cotangent.images is not None
        if self._which is None:
            self._which = self._influential(cotangent.images, cotangent.tokens)
        image, view = self._which.unbind(1)
        tokens = None if cotangent.tokens is None else cotangent.tokens[image, view]
        layers = self._tower.pullback(
            self._views, parameters.image_layers(), self._which, cotangent.images[image, view], tokens
        )
        return parameters.pull(text_gradient, layers)

    def prompt(self, parameters: Coupled) -> Prompt:
        """Both towers' prompts."""
        return parameters.prompt()

    def _influential(self, images: Tensor, tokens: Tensor | None) -> Tensor:
        """The pairs that the loss, the target or the answer depends on; they stay over all steps."""
        mask = images.ne(0).any(-1)
        if tokens is not None:
            mask = mask | tokens.flatten(2).ne(0).any(-1)
        mask[:, 0] = True
        return pairs(mask.scatter(1, self.method.target().views(self.untuned), True))


class DeepTuner(EpisodicTuner):
    """Several methods over one label set, from fitted MaPLe prompts. Images come as views, not as features."""

    reads = "views"

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Method],
        init: Coupled,
        *,
        views_per_pass: int = 0,
    ) -> None:
        super().__init__(encoder, classes, methods, ClassTexts(encoder, classes, init.text()))
        self.init = init
        layers = max((objective.token_layers for objective in self._objectives.values()), default=0)
        self._tower = PromptedViews(encoder, tokens_of=layers, views_per_pass=views_per_pass)

    def _problems(self, inputs: Tensor) -> list[Problem[Any, Any]]:
        found, states = self._tower.features(inputs, self.init.image_layers())
        tokens = states.unflatten(0, inputs.shape[:2]) if self._tower.tokens_of else None
        features = Features(self.texts.init_features(), found.unflatten(0, inputs.shape[:2]), tokens)
        return [
            CoupledProblem(
                self.encoder, method, self._objectives.get(method.name), self._tower, inputs, self.init, features
            )
            for method in self.methods
        ]
