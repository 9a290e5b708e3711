"""Episodic tuning of MaPLe's coupled prompts: context, deep prompts and projections, with the image tower in the graph.

Gradients with respect to image features and token states go back through the image tower one chunk of views at a time.
Views that the objective doesn't depend on are never computed again: with TPT's selection, 7 of 64 are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews, pairs
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.tuning.episodic import EpisodicTuner, Start
from poise.tuning.gradient import Features, ObjectiveGradient
from poise.tuning.loop import Problem, Scope
from poise.types import ClassTokens, DualEncoder, Outputs, Prompt


@dataclass(frozen=True)
class DeepFeatures(Features):
    """Features of texts and views."""

    images: Tensor  # [n, V, D]


@dataclass(kw_only=True)
class CoupledProblem(Problem[Coupled, DeepFeatures]):
    """Prompts of both towers are tuned; texts and views depend on them."""

    tower: PromptedViews
    views: Tensor  # [B, V, 3, S, S]
    pairs: Tensor | None = None  # the (image, view) pairs [n, 2] that matter, set by the first gradient

    def text_prompt(self) -> Prompt:
        """The prompts of the text tower."""
        return self.parameters.text()

    def follow(self, texts: Tensor) -> DeepFeatures:
        """The pairs that matter, computed again; the others as they were under the init."""
        assert self.pairs is not None
        features, states = self.tower.features(self.views, self.parameters.image_layers(), self.pairs)
        image, view = self.pairs.unbind(1)
        images, tokens = self.untuned.image_features.clone(), self.untuned.tokens
        images[image, view] = features
        if tokens is not None:
            tokens = tokens.clone()
            tokens[image, view] = states
        return DeepFeatures(texts, images, tokens)

    def outputs(self, features: DeepFeatures) -> Outputs:
        """The outputs under other texts and views."""
        logits = self.texts.logits(features.images, features.texts)
        return Outputs(features.images, features.texts, logits, self.untuned.logits, tokens=features.tokens)

    def gradient(self, cotangent: DeepFeatures, text_gradient: Prompt) -> Coupled:
        """Through the image tower for the pairs that matter, and then through the projections."""
        if self.pairs is None:
            self.pairs = self._influential(cotangent)
        image, view = self.pairs.unbind(1)
        tokens = None if cotangent.tokens is None else cotangent.tokens[image, view]
        layers = self.parameters.image_layers()
        image_gradient = self.tower.pullback(self.views, layers, self.pairs, cotangent.images[image, view], tokens)
        return self.parameters.pull(text_gradient, image_gradient)

    def prompt(self) -> Prompt:
        """The prompts of both towers."""
        return self.parameters.prompt()

    def _influential(self, cotangent: DeepFeatures) -> Tensor:
        """The pairs that the loss, the target or the answer depends on; they are the same in all steps."""
        mask = cotangent.images.ne(0).any(-1)
        if cotangent.tokens is not None:
            mask = mask | cotangent.tokens.flatten(2).ne(0).any(-1)
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
        for method in methods:
            if method.tunes and any(step.reads_views for step in method.make_posthoc()):
                raise InvalidOptionError(
                    f"'{method.name}' needs the tuned logits of all views, and MaPLe's are tuned for some views only.",
                    hint="Use it with another init, or without this post-hoc step.",
                )
        super().__init__(methods, ClassTexts(encoder, classes, init.text()))
        self.init = init
        layers = max((objective.token_layers for objective in self._objectives.values()), default=0)
        self._tower = PromptedViews(encoder, tokens_of=layers, views_per_pass=views_per_pass)

    def _start(self, inputs: Tensor) -> Start:
        flat, states = self._tower.features(inputs, self.init.image_layers())
        images, texts = flat.unflatten(0, inputs.shape[:2]), self.texts.init_features()
        tokens = states.unflatten(0, inputs.shape[:2]) if self._tower.tokens_of else None
        logits, prompt = self.texts.logits(images, texts), self.init.prompt()
        untuned = Outputs(images, texts.expand(len(images), -1, -1), logits, logits, tokens=tokens)
        features = DeepFeatures(texts, images, tokens)

        def problem(method: Method, objective: ObjectiveGradient | None) -> CoupledProblem:
            return CoupledProblem(
                method,
                objective,
                self.texts,
                untuned,
                prompt,
                self.init,
                features,
                Scope.SHARED,
                tower=self._tower,
                views=inputs,
            )

        return Start(untuned, prompt, texts, problem)
