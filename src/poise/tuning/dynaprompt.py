"""Online tuning along a stream: an image tunes those prompts of a memory that suit it (DynaPrompt, Xiao et al., 2025).

Two variants. "described": prompts that are surer than the init and differ more between the plain view and the others
are tuned together; where there are none, a copy of the init is appended and tuned, in place of the least recently used
prompt if the memory is full. "as-published" behaves like the released code: the memory holds differences to the init,
a fresh copy of the init is tuned for every image, selection is by ranks with double indexing on differences of logits,
and weight decay reaches all prompts. Both average the loss and the answer's logits over the picked prompts, and choose
views by entropy averaged over them. The optimiser starts anew for each image; with several steps, prompts are picked
once.

The published code leaves ties to `torch.topk`; here a tie goes to the lower slot. Equal prompts are therefore encoded,
scored and differentiated once: in one batch their numbers could differ in the last bits, and rounding would decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.objectives import view_entropy
from poise.tuning.answer import init_answer
from poise.tuning.gradient import Features, objective_gradients
from poise.tuning.loop import PerImage, Tuned, adapt, joined
from poise.tuning.memory import (
    PromptMemory,
    distinct,
    logit_difference,
    mean_entropy,
    pick_as_published,
    pick_described,
    probability_difference,
)
from poise.types import Adapted, Outputs, Prompt

VARIANTS = ("described", "as-published")


@dataclass(frozen=True)
class PickedFeatures(Features):
    """Of the distinct prompts among those that one image picked."""

    rows: tuple[int, ...] = ()  # where they are first in the list of picked prompts
    where: tuple[int, ...] = ()  # which row each picked prompt has

    def per_image(self, rows: Tensor) -> Tensor:
        """The mean over all picked prompts, [n, ...] -> [1, ...]."""
        return rows[list(self.where)].mean(0, keepdim=True)


@dataclass(frozen=True)
class Candidates:
    """The init and the prompts of a memory, before an image picks some of them."""

    slots: list[int]  # candidate 0 is the init, candidate i is in slot i - 1 of these
    fresh: int | None  # a slot that holds the init and is tuned for every image (as published)
    where: list[int]  # which distinct candidate each one equals
    known: list[Tensor]  # [C, D]: text features of the distinct ones; the first is the init
    unknown: Tensor  # [n, M, E]: the contexts of those whose features are still to be computed


class DynaPrompt:
    """One method along one ordered stream: its memory, and which prompts an image picks. See `answer_next`."""

    def __init__(
        self,
        texts: ClassTexts,
        method: Method,
        size: int = 10,
        variant: str = "described",
        *,
        memory: Callable[[Tensor, int], PromptMemory] = PromptMemory,
    ) -> None:
        if variant not in VARIANTS:
            raise InvalidOptionError(f"variant={variant!r} is not accepted.", hint=f"Accepted: {', '.join(VARIANTS)}.")
        given = texts.init
        if len(given) != 1 or given.context.dim() != 3 or given.text_layers is not None:
            told = {name: list(part.shape) for name, part in given.parts().items()}
            raise InvalidOptionError(
                f"DynaPrompt starts from one context [1, tokens, width], but got {told}.",
                hint="Deep, per-image and class-specific prompts have no memory: give one context for all classes.",
            )
        self.texts, self.method, self.variant = texts, method, variant
        self.objective = objective_gradients([method], texts.classes).get(method.name)
        self.published = variant == "as-published"
        context = given.context[0]
        self.init = context.to(torch.promote_types(context.dtype, torch.float32))
        self.base = self.init if self.published else torch.zeros_like(self.init)
        self.memory = memory(self.init - self.base, size)
        self.kept: dict[int, Tensor] = {}  # text features [C, D] of used slots; "described" never computes them twice
        self.seen = 0
        self.picked: list[list[int]] = []  # of the last call, image by image

    def candidates(self) -> Candidates:
        """Who stands for the next image."""
        fresh = self.memory.fresh() if self.published else None
        slots = list(range(len(self.memory.order))) if self.published else self.memory.used()
        contexts = torch.cat([self.init[None], (self.memory.values + self.base)[slots]])
        rows, where = distinct(contexts)
        known = [self.texts.init_features()[0]]
        if self.published:
            return Candidates(slots, fresh, where, known, contexts[rows[1:]])
        return Candidates(slots, fresh, where, [*known, *(self.kept[slots[row - 1]] for row in rows[1:])], contexts[:0])

    def pick(self, found: Candidates, untuned: Outputs, encoded: Tensor) -> OnlineProblem:
        """What the image tunes, given the text features of the candidates that were unknown."""
        texts = torch.cat([torch.stack(found.known), encoded])
        logits = self.texts.encoder.logits(untuned.image_features.expand(len(texts), -1, -1), texts)
        entropy = mean_entropy(logits)[found.where]
        if found.fresh is not None:
            difference = logit_difference(logits)[found.where]
            picked = pick_as_published(entropy[1:], difference[1:], found.fresh)
            chosen = [slot + 1 for slot in picked]
        else:
            chosen = pick_described(entropy, probability_difference(logits)[found.where]) or [0]
            picked = [found.slots[at - 1] if at else self.memory.fresh() for at in chosen]
        rows = [found.where[at] for at in chosen]
        return OnlineProblem(self, untuned, picked, texts[rows], logits[rows])

    def finish(self, problem: OnlineProblem, tuned: Tuned[Prompt, PickedFeatures]) -> None:
        """Keep what the image tuned."""
        values = self.memory.values.clone()
        values[problem.slots] = tuned.parameters.context
        self.memory.finish(problem.picked, values)
        if not self.published:
            rows = zip(problem.picked, tuned.features.where, strict=True)
            # Copies: as views they would keep the features of everybody who shared the pass.
            self.kept.update((slot, tuned.features.texts[row].clone()) for slot, row in rows)


class OnlineProblem:
    """One image that tunes the prompts it picked, and with them those that weight decay reaches."""

    def __init__(self, stream: DynaPrompt, untuned: Outputs, picked: list[int], texts: Tensor, logits: Tensor) -> None:
        """``picked`` are slots, one may be there twice; texts [P, C, D] and logits [P, V, C] are theirs."""
        self.method, self.objective = stream.method, stream.objective
        self.untuned, self.init_prompt, self.picked = untuned, stream.texts.init, picked
        values = stream.memory.values
        self.slots = list(range(len(values))) if stream.published else picked
        self._at = [self.slots.index(slot) for slot in picked]
        self._encoder, self._base, self._logits = stream.texts.encoder, stream.base, logits
        self._ranking = view_entropy(logits).mean(0, keepdim=True)  # [1, V]
        self.init = PerImage(Prompt(values[self.slots]))
        rows, where = distinct(self._contexts(self.init.parameters))
        self.init_features = PickedFeatures(texts[rows], rows=tuple(rows), where=tuple(where))

    def text_prompt(self, parameters: Prompt) -> Prompt:
        """The distinct ones among the picked prompts."""
        contexts = self._contexts(parameters)
        return Prompt(contexts[distinct(contexts)[0]])

    def features(self, parameters: Prompt, texts: Tensor) -> PickedFeatures:
        """Theirs."""
        rows, where = distinct(self._contexts(parameters))
        return PickedFeatures(texts, rows=tuple(rows), where=tuple(where))

    def outputs(self, features: PickedFeatures) -> Outputs:
        """Of the image under each of them; views are chosen by what all picked prompts said before tuning."""
        images = self.untuned.image_features.expand(len(features.rows), -1, -1)
        logits = self._encoder.logits(images, features.texts)
        reference, ranking = self._logits[list(features.rows)], self._ranking.expand(len(features.rows), -1)
        return Outputs(images, features.texts, logits, reference, ranking)

    def gradient(self, parameters: Prompt, cotangent: PickedFeatures, text_gradient: Prompt) -> Prompt:
        """Of the mean loss over the picked prompts."""
        at, values = torch.tensor(self._at, device=parameters.context.device), parameters.context
        own = text_gradient.context[list(cotangent.where)].to(values.dtype) / len(self._at)
        return Prompt(torch.zeros_like(values).index_add(0, at, own))

    def prompt(self, parameters: Prompt) -> Prompt:
        """The mean of the picked prompts, for the record; the answer averages their logits."""
        return Prompt(self._contexts(parameters).mean(0, keepdim=True))

    def _contexts(self, parameters: Prompt) -> Tensor:
        return parameters.context[self._at] + self._base


@torch.no_grad()
def answer_next(streams: Sequence[DynaPrompt], images: Tensor) -> list[Adapted]:
    """Each stream's answer for the next image, features [1, V, D]; streams share every pass through the text tower.

    Where something isn't finite the init answers, and the memory stays as it was.
    """
    texts = streams[0].texts
    init = texts.init_features()
    logits = texts.encoder.logits(images, init)
    untuned = Outputs(images, init, logits, logits)
    able = [stream for stream in streams if stream.objective is not None] if bool(logits.isfinite().all()) else []
    moments = [stream.memory.state() for stream in able]
    found = [stream.candidates() for stream in able]
    sizes = [len(each.unknown) for each in found]
    encoded = texts.features(joined([Prompt(each.unknown) for each in found])) if sum(sizes) else init[:0]
    problems = [
        stream.pick(each, untuned, own) for stream, each, own in zip(able, found, encoded.split(sizes), strict=True)
    ]
    answers = {}
    for stream, moment, problem, tuned in zip(able, moments, problems, adapt(problems, texts), strict=True):
        if bool(tuned.answer.fallback):
            stream.memory.reset(*moment)
        else:
            stream.finish(problem, tuned)
            stream.picked.append(problem.picked)
            answers[stream.method.name] = tuned.answer
    for stream in streams:
        stream.seen += 1
        if stream.method.name not in answers:
            stream.picked.append([])
            failed = stream.objective is not None
            answers[stream.method.name] = init_answer(stream.method, untuned, texts.init, failed=failed)
    return [answers[stream.method.name] for stream in streams]
