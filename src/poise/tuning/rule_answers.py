"""How rules answer: from the outputs under the initial prompt, and along a stream from a state that can be saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.files import checksum
from poise.methods import Method
from poise.rules import RuleAnswer, State, StreamRule
from poise.tuning.answer import make_answers, of_each
from poise.tuning.saved_state import identity, read_state, write_state
from poise.types import Answer, Outputs, Prompt

_FORMAT = "poise-stream/1"


class RuleRunner:
    """The rules of several methods over one label set, each along a stream of its own where order matters."""

    def __init__(self, methods: Sequence[Method], texts: ClassTexts) -> None:
        self.methods: dict[str, list[Method]] = {}  # those that share an answer before post-hoc steps
        for method in methods:
            if method.rule:
                self.methods.setdefault(method.before_posthoc(), []).append(method)
        self.texts = texts
        self._rules = {key: shared[0].make_rule() for key, shared in self.methods.items()}
        for rule in self._rules.values():
            rule.check(texts.encoder.name, texts.classes.labels)
        self.ordered = any(rule.ordered for rule in self._rules.values())
        self.states: dict[str, State] = {
            key: rule.start(texts.init_features()[0])
            for key, rule in self._rules.items()
            if isinstance(rule, StreamRule)
        }

    def answers(self, untuned: Outputs, init: Prompt, texts: Tensor) -> dict[str, Answer[Tensor]]:
        """Return the answers for the next B images, by method.

        Args:
            untuned: the outputs under the init.
            init: its prompt [B or 1, ...].
            texts: its text features [1 or B, C, D].
        """
        out, prompt = replace(untuned, text_features=texts), of_each(init, len(untuned.logits))
        found: dict[str, Answer[Tensor]] = {}
        for key, methods in self.methods.items():
            found |= _answers(methods, self._answer(key, out), untuned, prompt)
        return found

    def _answer(self, key: str, out: Outputs) -> RuleAnswer:
        rule = self._rules[key]
        if not isinstance(rule, StreamRule):
            return rule(out, self.texts)
        # An image whose numbers are not finite must not enter the state; its answer is NaN, so that the init answers.
        finite = out.logits.isfinite().flatten(1).all(-1)
        texts = out.text_features if len(out.text_features) == 1 else out.text_features[finite]
        kept = Outputs(out.image_features[finite], texts, out.logits[finite], out.reference_logits[finite])
        self.states[key], answer = rule.answer(self.states[key], kept, self.texts)
        logits = answer.logits.new_full((len(out.logits), *answer.logits.shape[1:]), torch.nan)
        logits[finite] = answer.logits
        changed = answer.text_features
        if changed is not None and not bool(finite.all()):
            changed = out.text_features.expand(len(logits), -1, -1).clone().index_put((finite,), changed)
        return RuleAnswer(logits, changed)

    def save(self, folder: str | Path) -> None:
        """Write the state of each stream into ``folder``."""
        for key, state in self.states.items():
            write_state(self._path(folder, key), _FORMAT, self._identity(key), state)

    def restore(self, folder: str | Path) -> None:
        """Restore what `save` wrote; answers are then bitwise those of an uninterrupted stream."""
        device = self.texts.encoder.device
        for key in self.states:
            tensors, _ = read_state(self._path(folder, key), _FORMAT, self._identity(key))
            self.states[key] = {name: tensor.to(device) for name, tensor in tensors.items()}

    def _identity(self, key: str) -> dict[str, object]:
        init = checksum(self.texts.init.context.double().cpu().numpy().tobytes())
        return {**identity(self.texts), "method": key, "init": init}

    def _path(self, folder: str | Path, key: str) -> Path:
        return Path(folder) / f"{self.methods[key][0].file_name}.safetensors"


def _answers(
    methods: Sequence[Method], answer: RuleAnswer, untuned: Outputs, prompt: Prompt
) -> dict[str, Answer[Tensor]]:
    """The answers of methods with one rule; where the rule's is not finite, the init answers."""
    logits = answer.logits if answer.logits.ndim == 3 else answer.logits[:, None]
    bad = ~logits.softmax(-1).isfinite().flatten(1).all(-1)  # logits of minus infinity are fine
    logits = torch.where(bad[:, None, None], untuned.logits[:, : logits.shape[1]], logits)
    texts = untuned.text_features
    if answer.text_features is not None:
        texts = torch.where(bad[:, None, None], texts, answer.text_features)
    of_views = answer.logits.ndim == 3
    return make_answers(
        methods,
        replace(untuned, text_features=texts, logits=logits if of_views else untuned.logits),
        untuned,
        prompt=prompt,
        losses=untuned.logits.new_empty(len(bad), 0),
        fallback=bad,
        logits=None if of_views else logits[:, 0],
    )
