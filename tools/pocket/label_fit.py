"""Second stage, by label sets: the text tower itself learns answers on photos without labels, in sentences.

Target: the shares of the classes, as in `distil.py`; as far as no label covers what is seen, what the first stage
answers. Labels that cover no class learn, too, and lose to those that do. Sentences about anything that covers no class
are kept near what the first stage gives for them.

Against `refit.py`, coarse nouns and names of classes are learnt better, and nouns that ImageNet does not have are kept
less well. The mean of the weights of both towers has both (`train.py`).
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import torch
from distil import (
    NEAR,
    SCALE,
    SETS,
    VIEWS,
    Directions,
    divergence,
    drawn,
    encode,
    held_words,
    known_of,
    sentences,
    share_of,
    weights_of,
)
from label_sets import Drawer, LabelSet
from torch import Tensor
from torch.nn import functional as F
from tower import TextTower

ANCHORS, POOL = 1024, 24_000  # sentences in one step that should not change, of how many
KEEP = 0.02  # weight of the direction of nouns that cover classes, against that of anchors
CHUNK = 8192  # sentences that pass through the tower together
SCALE_RATE = 2e-3
WARM_UP, REPORT = 100, 100  # steps


@dataclass(frozen=True)
class Settings:
    """Of the optimisation."""

    steps: int = 520
    rate: float = 6e-4
    anchor: float = 10.0
    seed: int = 0


class LabelFit:
    """The training of one tower, in place, on label sets."""

    def __init__(self, tower: TextTower, directions: Directions, options: Settings) -> None:
        self.tower, self.directions, self.options = tower, directions, options
        self.device = directions.device
        self.first = directions.first @ directions.basis.T
        nouns, held = directions.nouns, held_words(directions.nouns, directions.options.hold_out)
        near = (directions.first @ directions.others.T).topk(min(NEAR, len(directions.others))).indices.tolist()
        self.drawer = Drawer(nouns, near, lambda row: row["word"] not in held)
        self.log_scale = torch.nn.Parameter(torch.tensor(SCALE, device=self.device).log())
        draw = random.Random(options.seed)
        texts = [self.anchor(draw) for _ in range(POOL)]
        self.anchors, self.fixed = sentences(texts, self.device), encode(tower, texts, self.device)

    def anchor(self, draw: random.Random) -> list[int]:
        """A sentence about something that covers no class."""
        nouns = self.directions.nouns
        before, after = draw.choice(nouns["looks" if draw.random() < 0.25 else "templates"])
        return [*before, *draw.choice(nouns["anchors" if draw.random() < 0.8 else "distractors"]), *after]

    def answers(self, labels: LabelSet, views: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The target [B, n], and how far it comes from what some label covers [B]."""
        teacher = self.directions.teacher
        at = teacher.at(labels)
        sums = views["classes"] @ share_of(teacher.members[at])
        covered = sums.sum(-1, keepdim=True)
        known = known_of(covered)
        before = (SCALE * views["features"] @ teacher.old[at].T).softmax(-1)
        return known * sums / covered.clamp(min=1e-9) + (1 - known) * before, known[:, 0]

    def encode(self, ids: Tensor) -> Tensor:
        """Unit vectors [N, D] of token ids [N, L]; texts of like length together."""
        order, out = ids.argmax(-1).argsort(), []
        for rows in order.split(CHUNK):
            group = ids[rows]
            with torch.autocast(self.device.split(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
                found = self.tower(group[:, : int(group.argmax(-1).max()) + 1])
            out.append(F.normalize(found.float(), dim=-1))
        return torch.cat(out)[order.argsort()]

    def train(self, workers: int = 0) -> None:
        """Take all steps; label sets are drawn by `workers` processes."""
        options, parameters = self.options, list(self.tower.parameters())
        groups = [{"params": parameters, "rate": options.rate}, {"params": [self.log_scale], "rate": SCALE_RATE}]
        fused = self.device != "cpu"
        optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0, fused=fused)
        generator, start = torch.Generator().manual_seed(options.seed), time.time()
        with drawn(self.drawer, options.steps, options.seed, workers) as sets:
            for step in range(options.steps):
                for group in optimizer.param_groups:
                    group["lr"] = group["rate"] * min(1, (step + 1) / WARM_UP) * (1 - step / options.steps)
                total, text = self.loss([next(sets) for _ in range(SETS)], generator)
                optimizer.zero_grad(set_to_none=True)
                total.backward()
                torch.nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                if (step + 1) % REPORT == 0:
                    print(f"label sets: step {step + 1}/{options.steps} {time.time() - start:.0f}s {text}", flush=True)

    def loss(self, sets: list[LabelSet], generator: torch.Generator) -> tuple[Tensor, str]:
        """The loss of one step, and its parts as text."""
        own = self.directions
        chosen = torch.randperm(len(own.seen["features"]), generator=generator)[:VIEWS].to(self.device)
        views = {key: own.seen[key][chosen] for key in ("features", "classes", "whole")}
        labelled = sentences([text for labels in sets for text in labels.texts], self.device)
        some = torch.randint(POOL, (ANCHORS,), generator=generator).to(self.device)
        longest = max(labelled.shape[1], self.anchors.shape[1])
        ids = torch.cat([F.pad(part, (0, longest - part.shape[1])) for part in (labelled, self.anchors[some])])
        found = self.encode(ids)
        rows = torch.tensor([r for labels in sets for r in labels.rows], device=self.device)
        moved = 1 - (found[: len(rows)] * self.first[rows])[rows >= 0].sum(-1).mean()
        drift = 1 - (found[len(rows) :] * self.fixed[some]).sum(-1).mean()
        fit = torch.zeros((), device=self.device)
        for labels, vectors in zip(sets, found[: len(rows)].split([len(s.rows) for s in sets]), strict=True):
            target, known = self.answers(labels, views)
            logits = self.log_scale.exp() * views["whole"] @ vectors.T
            fit = fit + (weights_of(target, known) * divergence(logits, target)).sum() / SETS
        total = fit + self.options.anchor * (drift + KEEP * moved)
        parts = [part.item() for part in (fit, drift, moved, self.log_scale.exp())]
        return total, "fit {:.4f} drift {:.4f} moved {:.4f} scale {:.2f}".format(*parts)
