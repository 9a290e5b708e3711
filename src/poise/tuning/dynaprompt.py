"""Online tuning along a stream: an image tunes those prompts of a memory that suit it (DynaPrompt, Xiao et al., 2025).

There are two variants. "described": prompts that are more certain than the init and differ more between the plain view
and the others are tuned together; if there are none, a copy of the init is appended and tuned, in place of the least
recently used prompt if the memory is full. "as-published" behaves like the released code: the memory stores differences
to the init, a fresh copy of the init is tuned for every image, selection is by ranks with double indexing on
differences of logits, and weight decay reaches all prompts. Both average the loss and the answer's logits over the
picked prompts, and choose views by entropy averaged over them. The optimiser starts anew for each image; with several
steps, prompts are picked once.

The published code leaves ties to `torch.topk`; here a tie goes to the lower slot. Equal prompts are therefore encoded,
scored and differentiated once: in one batch their numbers could differ in the last bits, and rounding would decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts, distinct, joined
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.objectives import view_entropy
from poise.tuning.answer import init_answers
from poise.tuning.gradient import Features, objective_gradients
from poise.tuning.loop import Problem, adapt
from poise.tuning.memory import (
    PromptMemory,
    logit_difference,
    pick_as_published,
    pick_described,
    probability_difference,
)
from poise.types import Answer, Outputs, Prompt

VARIANTS = ("described", "as-published")


@dataclass(frozen=True, kw_only=True)
class PickedFeatures(Features):
    """Text features of the distinct prompts among those that one image picked."""

    rows: list[int]  # the position of each distinct prompt in the list of picked prompts
    where: list[int]  # the row of each picked prompt

    def per_image(self, rows: Tensor) -> Tensor:
        """Return the mean over all picked prompts, [n, ...] -> [1, ...]."""
        return rows[self.where].mean(0, keepdim=True)


@dataclass(frozen=True)
class Candidates:
    """The init and the prompts of a memory, before an image picks some of them."""

    slots: list[int]  # candidate 0 is the init, candidate i is in slots[i - 1]
    fresh: int | None  # a slot with the init, which is tuned for every image (as published)
    where: list[int]  # the distinct candidate that each one equals
    known: list[Tensor]  # text features [C, D] of distinct candidates; the first is the init
    unknown: Tensor  # contexts [n, M, E] of the distinct candidates whose features are not known


class DynaPrompt:
    """One method along one ordered stream: its memory, and which prompts an image picks. See `answer_next`.

    Args:
        texts: the class texts, with one context [1, M, E] as init.
        method: what the prompts are tuned by.
        size: the number of prompts in the memory.
        variant: "described" or "as-published".
        memory: makes the memory from the init [M, E] and the size.
    """

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
        if method.rule:
            raise InvalidOptionError(
                f"'{method.name}' tunes no prompt.", hint="Give methods that minimise an objective."
            )
        context = texts.init.context
        if context.shape[:-2] != (1,) or texts.init.text_layers is not None:
            shapes = {name: list(part.shape) for name, part in texts.init.parts().items()}
            raise InvalidOptionError(
                f"DynaPrompt starts from one context [1, tokens, width], but got {shapes}.",
                hint="Deep, per-image and class-specific prompts have no memory: give one context for all classes.",
            )
        self.texts, self.method, self.variant = texts, method, variant
        self.objective = objective_gradients([method], texts.classes).get(method.name)
        self.published = variant == "as-published"
        self.init = context[0].to(torch.promote_types(context.dtype, torch.float32))
        self.base = self.init if self.published else torch.zeros_like(self.init)
        self.memory = memory(self.init - self.base, size)
        self.text_features: dict[int, Tensor] = {}  # [C, D] of used slots, for "described", which computes them once
        self.seen = 0
        self.picked: list[list[int]] = []  # the slots that each image of the last call tuned

    def candidates(self) -> Candidates:
        """Return the candidates for the next image."""
        slots = list(range(len(self.memory.order))) if self.published else self.memory.used()
        fresh = self.memory.fresh() if self.published else None
        contexts = torch.cat([self.init[None], (self.memory.values + self.base)[slots]])
        rows, where = _distinct_contexts(contexts)
        init = self.texts.init_features()[0]
        if self.published:
            return Candidates(slots, fresh, where, [init], contexts[rows[1:]])
        known = [init, *(self.text_features[slots[row - 1]] for row in rows[1:])]
        return Candidates(slots, fresh, where, known, contexts[:0])

    def pick(self, candidates: Candidates, untuned: Outputs, encoded: Tensor) -> OnlineProblem:
        """Return the problem of the prompts that an image picks.

        Args:
            candidates: the prompts to choose from.
            untuned: the outputs of the image under the init.
            encoded: text features [n, C, D] of the candidates whose features were unknown.
        """
        where, texts = candidates.where, torch.cat([torch.stack(candidates.known), encoded])
        logits = self.texts.logits(untuned.image_features.expand(len(texts), -1, -1), texts)
        entropy = view_entropy(logits).mean(1)[where]
        if candidates.fresh is not None:
            difference = logit_difference(logits)[where]
            picked = pick_as_published(entropy[1:], difference[1:], candidates.fresh)
            chosen = [slot + 1 for slot in picked]
        else:
            chosen = pick_described(entropy, probability_difference(logits)[where]) or [0]
            picked = [candidates.slots[number - 1] if number else self.memory.fresh() for number in chosen]
        rows = [where[number] for number in chosen]
        return OnlineProblem.of(self, untuned, picked, texts[rows], logits[rows])

    def finish(self, problem: OnlineProblem) -> None:
        """Store what the image tuned."""
        values = self.memory.values.clone()
        values[problem.slots] = problem.parameters.context
        self.memory.finish(problem.picked, values)
        if not self.published:
            # Copies: views would keep alive the features of all methods that shared the pass.
            for slot, row in zip(problem.picked, problem.features.where, strict=True):
                self.text_features[slot] = problem.features.texts[row].clone()


@dataclass(kw_only=True)
class OnlineProblem(Problem[Prompt, PickedFeatures]):
    """One image that tunes the prompts it picked, and with them those that weight decay reaches."""

    picked: list[int]  # slots; one may be there twice
    slots: list[int]  # the slots of the parameters
    base: Tensor  # [M, E]: what is added to the parameters
    picked_logits: Tensor  # [P, V, C] of the picked prompts before tuning
    ranking: Tensor  # [1, V]: entropies of these, averaged over the picked prompts

    @classmethod
    def of(
        cls, stream: DynaPrompt, untuned: Outputs, picked: list[int], texts: Tensor, logits: Tensor
    ) -> OnlineProblem:
        """Make the problem of the picked slots, with their text features [P, C, D] and logits [P, V, C]."""
        values = stream.memory.values
        slots = list(range(len(values))) if stream.published else picked
        rows, where = _distinct_contexts(values[picked] + stream.base)
        return cls(
            stream.method,
            stream.objective,
            stream.texts,
            untuned,
            stream.texts.init,
            Prompt(values[slots]),
            PickedFeatures(texts[rows], rows=rows, where=where),
            picked=picked,
            slots=slots,
            base=stream.base,
            picked_logits=logits,
            ranking=view_entropy(logits).mean(0, keepdim=True),
        )

    def text_prompt(self) -> Prompt:
        """The distinct ones among the picked prompts."""
        contexts = self._contexts()
        return Prompt(contexts[_distinct_contexts(contexts)[0]])

    def follow(self, texts: Tensor) -> PickedFeatures:
        """The text features of the distinct prompts."""
        rows, where = _distinct_contexts(self._contexts())
        return PickedFeatures(texts, rows=rows, where=where)

    def outputs(self, features: PickedFeatures) -> Outputs:
        """The image under each distinct prompt; views are chosen by all picked prompts' logits before tuning."""
        count = len(features.rows)
        images = self.untuned.image_features.expand(count, -1, -1)
        reference, ranking = self.picked_logits[features.rows], self.ranking.expand(count, -1)
        logits = self.texts.logits(images, features.texts)
        return Outputs(images, features.texts, logits, reference, ranking)

    def gradient(self, cotangent: PickedFeatures, text_gradient: Prompt) -> Prompt:
        """The gradient of the mean loss over the picked prompts."""
        values = self.parameters.context
        index = torch.tensor([self.slots.index(slot) for slot in self.picked], device=values.device)
        gradients = text_gradient.context[cotangent.where].to(values.dtype) / len(self.picked)
        return Prompt(torch.zeros_like(values).index_add(0, index, gradients))

    def prompt(self) -> Prompt:
        """The mean of the picked prompts, for the record; the answer averages their logits."""
        return Prompt(self._contexts().mean(0, keepdim=True))

    def _contexts(self) -> Tensor:
        return self.parameters.context[[self.slots.index(slot) for slot in self.picked]] + self.base


def _distinct_contexts(contexts: Tensor) -> tuple[list[int], list[int]]:
    return distinct([context.tobytes() for context in contexts.cpu().numpy()])


@torch.no_grad()
def answer_next(streams: Sequence[DynaPrompt], images: Tensor) -> list[Answer[Tensor]]:
    """Return each stream's answer for the next image; streams share every pass through the text tower.

    If something is not finite, the init answers and the memory stays as it was.

    Args:
        streams: one per method, with the same class texts.
        images: features [1, V, D] of the image.
    """
    texts = streams[0].texts
    init = texts.init_features()
    logits = texts.logits(images, init)
    untuned = Outputs(images, init, logits, logits)
    active = [stream for stream in streams if stream.objective is not None] if bool(logits.isfinite().all()) else []
    states = [stream.memory.state() for stream in active]
    candidates = [stream.candidates() for stream in active]
    sizes = [len(group.unknown) for group in candidates]
    encoded = texts.features(joined([Prompt(group.unknown) for group in candidates])) if sum(sizes) else init[:0]
    problems = [
        stream.pick(group, untuned, part)
        for stream, group, part in zip(active, candidates, encoded.split(sizes), strict=True)
    ]
    adapt(problems, texts)
    answers: dict[str, Answer[Tensor]] = {}
    for stream, state, problem in zip(active, states, problems, strict=True):
        found = problem.answers([stream.method])
        if bool(found[stream.method.name].fallback):
            stream.memory.reset(*state)
        else:
            stream.finish(problem)
            stream.picked.append(problem.picked)
            answers |= found
    for stream in streams:
        stream.seen += 1
        if stream.method.name not in answers:
            stream.picked.append([])
            failed_steps = None if stream.objective is None else stream.method.steps
            answers |= init_answers([stream.method], untuned, texts.init, failed_steps=failed_steps)
    return [answers[stream.method.name] for stream in streams]
