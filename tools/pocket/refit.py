"""Second stage, second half: the text tower learns the new directions, in sentences, and keeps all others.

Target of a sentence: what the first stage's tower gives for it, moved as far as the direction of its noun has moved
(`distil.py`), which is not at all for nouns, word pieces and definitions that cover no class. The loss is the mean
square error of the logits on photos, beside the cosine.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from batches import SECOND_WEIGHT, Sentences
from distil import SCALE, Directions, held_words, owners
from torch import Tensor
from torch.nn import functional as F
from tower import TextTower

SHARES = {"names": 0.25, "nouns": 0.33, "words": 0.30, "plurals": 0.03, "pieces": 0.02, "gloss": 0.07}
COSINE = 4.0  # weight of the cosine against the logits' error
PHOTOGRAPHED = 3.0  # how much oftener a word for something that is photographed is drawn
WARM_UP, REPORT = 100, 250  # steps
APART = 10  # of the nouns that cover nothing, every so many-th is held back to choose


@dataclass(frozen=True)
class Settings:
    """Of the optimisation."""

    steps: int = 4783
    batch: int = 2048
    rate: float = 5e-4
    seed: int = 0


class Refit:
    """The training of one tower, in place, towards moved directions."""

    def __init__(
        self, tower: TextTower, corpus: dict[str, Any], directions: Directions, found: Tensor, options: Settings
    ) -> None:
        """`found` [N, width]: the directions of all nouns, as `Directions.learn` gives them."""
        self.tower, self.options, self.directions, device = tower, options, directions, directions.device
        self.first = copy.deepcopy(tower).eval().requires_grad_(False)
        tower.text_projection.requires_grad_(False)  # directions stay in its space
        rows, held = directions.nouns["rows"], held_words(directions.nouns, directions.options.hold_out)
        kept = [
            r
            for r, owner in enumerate(owners(rows))
            if r == owner and r >= 1000 and not rows[r]["pair"] and rows[r]["word"] not in held
        ]
        groups = {
            "names": ([row["ids"] for row in rows[:1000]], [1.0] * 1000),
            "nouns": ([rows[r]["ids"] for r in kept], [rows[r]["weight"] for r in kept]),
            **self.others(corpus),
        }
        weights = {name: (texts, torch.tensor(weight, device=device)) for name, (texts, weight) in groups.items()}
        self.sentences = Sentences(corpus["ids"], weights, SHARES, {look for look, _, _ in corpus["ids"]["looks"]})
        moved = (found - directions.first) @ directions.basis.T
        self.moved = torch.zeros(len(self.sentences.pieces), moved.shape[1], device=device)
        self.moved[:1000], self.moved[1000 : 1000 + len(kept)] = moved[:1000], moved[kept]
        features = directions.seen["features"] @ directions.basis.T
        self.spread = features.T @ features / len(features)  # second moments of photos [D, D]

    def others(self, corpus: dict[str, Any]) -> dict[str, tuple[list[list[int]], list[float]]]:
        """Texts that cover no class, and how often each is drawn."""
        nouns, ids, seen = self.directions.nouns, corpus["ids"], set(corpus["photographed"])
        known = {row[key].lower() for row in nouns["rows"] for key in ("word", "text")}
        hidden = {tuple(text) for text in nouns["distractors"][::APART]} if self.directions.options.hold_out else set()

        def common(w: int) -> float:
            senses = corpus["senses"][w]
            return (1 + math.log1p(max(c for _, c in senses))) * (PHOTOGRAPHED if senses[0][0] in seen else 1.0)

        def chosen(name: str, texts: list[str], weight: Callable[[int], float]) -> tuple[list[list[int]], list[float]]:
            at = [i for i, text in enumerate(texts) if text not in known and tuple(ids[name][i]) not in hidden]
            return [ids[name][i] for i in at], [weight(i) for i in at]

        return {
            "words": chosen("words", corpus["words"], common),
            "plurals": chosen("plurals", corpus["plurals"], lambda _: 1.0),
            "pieces": chosen("pieces", corpus["pieces"], lambda _: 1.0),
            "gloss": (ids["gloss"], [1.0] * len(ids["gloss"])),
        }

    def train(self) -> None:
        """Take all steps."""
        options, parameters = self.options, [p for p in self.tower.parameters() if p.requires_grad]
        fused = self.directions.device != "cpu"
        optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
        start = time.time()
        for step in range(options.steps):
            optimizer.param_groups[0]["lr"] = options.rate * min(1, (step + 1) / WARM_UP) * (1 - step / options.steps)
            cosine, logits = self.loss(step)
            optimizer.zero_grad(set_to_none=True)
            (COSINE * cosine + logits).backward()
            optimizer.step()
            if (step + 1) % REPORT == 0:
                texts = f"cosine {1 - cosine.item():.5f} logits {logits.item():.5f}"
                print(f"tower: step {step + 1}/{options.steps} {time.time() - start:.0f}s {texts}", flush=True)

    def loss(self, step: int) -> tuple[Tensor, Tensor]:
        """1 - cosine, and the mean square error of logits, of one step's sentences."""
        drawn = self.sentences(step, self.options.batch, self.options.seed)
        second = SECOND_WEIGHT * drawn.pair[:, None] * self.moved[drawn.other]
        with torch.no_grad():
            before = F.normalize(self.first(drawn.ids, parts=3), dim=-1)
        target = F.normalize(before + self.moved[drawn.piece] + second, dim=-1)
        error = F.normalize(self.tower(drawn.ids, parts=3), dim=-1) - target
        return error.square().sum(-1).mean() / 2, SCALE**2 * ((error @ self.spread) * error).sum(-1).mean()
