"""Online tuning along a stream: an image tunes those prompts of a memory that suit it (DynaPrompt, Xiao et al., 2025).

Two variants. "described": prompts that are surer than the start and differ more between the plain view and the others
are tuned together; where there are none, a copy of the start is appended and tuned, in place of the least recently used
prompt if the memory is full. "as-published" behaves like the released code: the memory holds differences to the start,
a fresh copy of the start is tuned for every image, selection is by ranks with double indexing on differences of logits,
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
from poise.objectives import chosen_views, view_entropy
from poise.prompts import init_prompt
from poise.tuning.adamw import AdamW
from poise.tuning.answer import make_answer, stacked
from poise.tuning.memory import (
    PromptMemory,
    distinct,
    logit_difference,
    mean_entropy,
    pick_as_published,
    pick_described,
    probability_difference,
)
from poise.tuning.step import Recipe, differentiate
from poise.tuning.together import Ask, Asking, answer_together
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt

VARIANTS = ("described", "as-published")


@dataclass(frozen=True)
class Candidates:
    """The slots an image picked, and what they say of its views before tuning."""

    picked: list[int]
    texts: Tensor  # [P, C, D]
    logits: Tensor  # [P, V, C]


class DynaPrompt:
    """One method along one ordered stream. `predict` goes on where the last call ended."""

    reads = "features"
    ordered = True

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        method: Recipe,
        size: int = 10,
        variant: str = "described",
        *,
        start: Prompt | None = None,
        texts: ClassTexts | None = None,
        memory: Callable[[Tensor, int], PromptMemory] = PromptMemory,
    ) -> None:
        if variant not in VARIANTS:
            raise InvalidOptionError(f"variant={variant!r} is not accepted.", hint=f"Accepted: {', '.join(VARIANTS)}.")
        self.encoder, self.classes, self.method, self.variant = encoder, classes, method, variant
        self.texts = texts or ClassTexts(encoder, classes, start or init_prompt(encoder, classes))
        given = self.texts.start
        if len(given) != 1 or given.context.dim() != 3 or given.text_layers is not None:
            told = {name: list(part.shape) for name, part in given.parts().items()}
            raise InvalidOptionError(
                f"DynaPrompt starts from one context [1, tokens, width], but got {told}.",
                hint="Deep, per-image and class-specific prompts have no memory: give one context for all classes.",
            )
        context = self.texts.start.context[0]
        context = context.to(torch.promote_types(context.dtype, torch.float32))
        self._published = variant == "as-published"
        self._init = context
        self._base = context if self._published else torch.zeros_like(context)
        self.memory = memory(context - self._base, size)
        self.kept: dict[int, Tensor] = {}  # text features [C, D] of used slots; "described" never computes them twice
        self.seen = 0
        self.picked: list[list[int]] = []  # of the last call, image by image
        self._objective = method.objective() if method.steps else None

    @torch.no_grad()
    def predict(self, image_features: Tensor) -> Adapted:
        """Unit features of all views [B, V, D], in the stream's order -> answers, image by image."""
        self.picked = []
        features = image_features.to(self.encoder.device)
        return stacked([answer_together([self.take(each[None])], self.texts)[0] for each in features])

    def take(self, features: Tensor) -> Asking[Adapted]:
        """One image [1, V, D]; where something isn't finite the start answers, and the memory stays as it was."""
        self.seen += 1
        reference = self.encoder.logits(features, self.texts.init_features())
        before = self.memory.state()
        tuned = None
        if self._objective is not None and len(self.classes) > 1 and bool(reference.isfinite().all()):
            tuned = yield from self._tune(features, reference)
        failed = self._objective is not None and len(self.classes) > 1 and tuned is None
        if tuned is not None:
            return tuned
        self.memory.reset(*before)
        self.picked.append([])
        losses = reference.new_full((1, self.method.steps if failed else 0), torch.nan)
        out = Outputs(features, self.texts.init_features(), reference, reference)
        return make_answer(self.method, out, self.texts.start, losses, torch.full((1,), failed, device=losses.device))

    def _tune(self, features: Tensor, reference: Tensor) -> Asking[Adapted | None]:
        found = yield from self._candidates(features, reference)
        ranking = view_entropy(found.logits).mean(0, keepdim=True)  # [1, V]

        def outputs(texts: Tensor, rows: Sequence[int]) -> Outputs:
            """What the picked prompts ``rows`` (positions in the list of picked slots) say under ``texts``."""
            own = features.expand(len(rows), -1, -1)
            logits = self.encoder.logits(own, texts)
            return Outputs(own, texts, logits, found.logits[list(rows)], ranking.expand(len(rows), -1))

        values, losses = yield from self._descend(found, outputs)
        context = values[found.picked] + self._base
        rows, where = distinct(context)
        out = outputs((yield Ask(context[rows])), rows)
        logits = out.logits[where].mean(0, keepdim=True)[:, 0]  # [1, C]
        texts = out.text_features[where]
        if not bool(logits.isfinite().all() & losses.isfinite().all() & values.isfinite().all()):
            return None
        self.memory.finish(found.picked, values)
        # Copies: as views they would keep the features of everybody who shared the pass.
        self.kept.update((slot, text.clone()) for slot, text in zip(found.picked, texts, strict=True))
        self.picked.append(found.picked)
        target = self.method.target()
        return Adapted(
            logits=logits,
            probs=logits.softmax(-1),
            init_probs=reference[:, 0].softmax(-1),
            target_probs=target.log_probs(out).exp()[where].mean(0, keepdim=True),
            confidences=reference.softmax(-1).amax(-1),
            temperatures=target.temperatures(reference),
            selected=chosen_views(out, target.selection)[:1],
            losses=losses,
            fallback=torch.zeros(1, dtype=torch.bool, device=logits.device),
            prompt=Prompt(context.mean(0, keepdim=True)),
            text_features=texts.mean(0, keepdim=True),
        )

    def _candidates(self, features: Tensor, reference: Tensor) -> Asking[Candidates]:
        if self._published:
            start = self.memory.fresh()
            contexts = torch.cat([self._init[None], self.memory.values + self._base])
            rows, where = distinct(contexts)  # row 0 is the init, and serves all slots that hold it
            texts = self.texts.init_features()
            if len(rows) > 1:
                texts = torch.cat([texts, (yield Ask(contexts[rows[1:]]))])
            logits = self.encoder.logits(features.expand(len(texts), -1, -1), texts)
            of_slot = where[1:]
            picked = pick_as_published(mean_entropy(logits)[of_slot], logit_difference(logits)[of_slot], start)
            chosen = [of_slot[slot] for slot in picked]
            return Candidates(picked, texts[chosen], logits[chosen])
        slots = self.memory.used()
        rows, where = distinct(torch.cat([self._init[None], (self.memory.values + self._base)[slots]]))
        init_texts = self.texts.init_features()
        texts = torch.stack([init_texts[0], *(self.kept[slots[row - 1]] for row in rows[1:])])
        logits = self.encoder.logits(features.expand(len(texts), -1, -1), texts)
        better = pick_described(mean_entropy(logits)[where], probability_difference(logits)[where])
        if not better:
            return Candidates([self.memory.fresh()], init_texts, reference)
        chosen = [where[index] for index in better]
        return Candidates([slots[index - 1] for index in better], texts[chosen], logits[chosen])

    def _descend(
        self, found: Candidates, outputs: Callable[[Tensor, Sequence[int]], Outputs]
    ) -> Asking[tuple[Tensor, Tensor]]:
        """All slots' values [size, M, E] after the steps, and the mean loss of each step [1, steps]."""
        assert self._objective is not None
        values = self.memory.values
        picked = torch.tensor(found.picked, device=values.device)
        tuned = torch.zeros(len(values), 1, 1, dtype=torch.bool, device=values.device)
        tuned[picked] = True
        optimiser, losses = AdamW(lr=self.method.lr, weight_decay=self.method.weight_decay), []
        for step in range(self.method.steps):
            context = values[picked] + self._base
            rows, where = distinct(context)
            texts = (yield Ask(context[rows])) if step else found.texts[rows]
            value, cotangent = differentiate(self._objective, texts, _of_rows(outputs, rows))
            pulled = yield Ask(context[rows], cotangent / len(picked))
            gradient = torch.zeros_like(values).index_add(0, picked, pulled.to(values.dtype)[where])
            moved, optimiser = optimiser.step(Prompt(values), Prompt(gradient))
            values = moved.context if self._published else torch.where(tuned, moved.context, values)
            losses.append(value[where].mean())
        return values, torch.stack(losses)[None]


def _of_rows(outputs: Callable[[Tensor, Sequence[int]], Outputs], rows: Sequence[int]) -> Callable[[Tensor], Outputs]:
    return lambda texts: outputs(texts, rows)
