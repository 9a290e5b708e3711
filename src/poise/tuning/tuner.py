"""The tuners of a context: from one init for all images, or from one that follows the image (CoCoOp)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.methods import Method
from poise.prompts import init_prompt
from poise.prompts.conditional import Conditional
from poise.tuning.episodic import EpisodicTuner
from poise.tuning.loop import PerImage, Problem, SharedInit
from poise.types import ClassTokens, DualEncoder, Prompt


class Tuner(EpisodicTuner):
    """Test-time prompt tuning: every image starts from the same context.

    Labels are encoded when the tuner is made, and never again under the init.

    Args:
        encoder: the model.
        classes: the labels under a template (`poise.prompts.tokenise`).
        methods: what to tune by; they share all passes through the model.
        init: the context [1, M, E] to start from, or [1, C, M, E] with one for each class; the template's words by
            default.
        tokens_per_pass: text tokens that go through the text tower at once; 0 chooses.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Method],
        init: Prompt | None = None,
        *,
        tokens_per_pass: int = 0,
    ) -> None:
        texts = ClassTexts(encoder, classes, init or init_prompt(encoder, classes), tokens_per_pass=tokens_per_pass)
        super().__init__(encoder, classes, methods, texts)

    def _problems(self, inputs: Tensor) -> list[Problem[Any, Any]]:
        return self._context_problems(inputs, SharedInit(self.texts.init), self.texts.init_features())


class ConditionalTuner(EpisodicTuner):
    """The same from CoCoOp's context, which is made once for each image, from its plain view."""

    def __init__(
        self, encoder: DualEncoder, classes: ClassTokens, methods: Sequence[Method], init: Conditional
    ) -> None:
        super().__init__(encoder, classes, methods, ClassTexts(encoder, classes, Prompt(init.context[None])))
        self.init = init

    def _problems(self, inputs: Tensor) -> list[Problem[Any, Any]]:
        init = self.init.prompt(inputs[:, 0].to(self.init.context))
        return self._context_problems(inputs, PerImage(init), self.texts.features(init))
