"""Second stage: the text tower learns to say of any label set what the image tower knows about ImageNet's classes.

Teacher: p(class | image) of the image tower's own classifier. Each class gives its share to the labels that cover it,
the narrowest first (a label's weight is one over the number of its classes). As far as no label covers what the tower
sees, the first stage's own answer over these labels stands. Student: softmax of scale times cosine. No labels of images
are used. Texts that cover no class keep the direction they have: they take part in label sets, but don't learn there.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from dataclasses import dataclass
from typing import Any

import torch
from batches import padded
from label_sets import KINDS, Drawer, LabelSet
from torch import Tensor
from torch.nn import functional as F
from tower import END, START, TextTower

SCALE = 20.5  # of the first stage
OPEN = 0.3  # how much less what no label covers speaks than what some label does: one of the labels is right
FLOOR = 0.1  # least weight of an image on which no label of the set is seen
SETS, ANCHORS, VIEWS = 16, 1024, 8192  # label sets, anchors and views of photos in one step
POOL = 24_000  # different anchors
KEEP = 0.02  # weight of the direction of nouns that cover classes, against that of anchors
NEAR = 16  # distractors that are most alike to a noun
WARM_UP, REPORT = 100, 100  # steps
MEASURED = 40  # label sets of each kind that are measured on
_drawer: Drawer | None = None  # of a process that draws label sets


@dataclass(frozen=True)
class Settings:
    """What was chosen on held-back material, and the share of nouns that is held back to choose."""

    steps: int = 540
    rate: float = 5e-4
    anchor: float = 10.0
    keep: float = KEEP
    scale: float = SCALE
    hold_out: float = 0.0
    seed: int = 0


class Teacher:
    """Answers over any label set, from the distribution over the 1000 classes."""

    def __init__(self, nouns: dict[str, Any], old: Tensor, others: Tensor) -> None:
        """`old` [N, D] and `others` [O, D] are the first stage's directions of nouns and distractors."""
        count = len(nouns["rows"])
        members = torch.zeros(count + len(others), 1000)
        for r, row in enumerate(nouns["rows"]):
            classes, weights = zip(*row["cover"], strict=True)
            members[r, list(classes)] = torch.tensor(weights)
        self.members = members.to(old.device)
        self.size = self.members.sum(1).clamp(min=1)
        self.old = torch.cat([old, others])
        self.first_other = count

    def __call__(self, labels: LabelSet, photos: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Probabilities of the labels [B, n], and how far they come from what some label covers [B]."""
        classes = photos["classes"]
        at = torch.tensor(
            [r if r >= 0 else self.first_other + o for r, o in zip(labels.rows, labels.others, strict=True)],
            device=classes.device,
        )
        members = self.members[at]
        share = members / self.size[at, None]
        sums = classes @ (members.amax(0) * share / share.sum(0).clamp(min=1e-9)).T
        covered = sums.sum(-1)
        known = covered.square() / (covered.square() + OPEN * (1 - covered).square())
        before = (SCALE * photos["features"] @ self.old[at].T).softmax(-1)
        told = sums / covered.clamp(min=1e-9)[:, None]
        return known[:, None] * told + (1 - known)[:, None] * before, known


def unpacked(parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `photos.py` keeps, as training reads it: features [N, D], classes [N, 1000], photo and view [N]."""
    classes = torch.zeros(len(parts["features"]), 1000)
    classes.scatter_(1, parts["classes"].long(), parts["values"].float())
    return {
        "features": F.normalize(parts["features"].float(), dim=-1),
        "classes": classes / classes.sum(-1, keepdim=True),
        "image": parts["image"],
        "view": parts["view"],
    }


def sentences(texts: list[list[int]], device: str) -> Tensor:
    """Token ids [N, L] with both marks."""
    return padded([[START, *text, END] for text in texts], device).clamp(min=0)


def encode(tower: TextTower, ids: Tensor, chunk: int = 8192) -> Tensor:
    """Unit vectors [N, D] of token ids [N, L]; texts of like length together."""
    device = str(ids.device)
    order = ids.argmax(-1).argsort()
    out = []
    for rows in order.split(chunk):
        group = ids[rows]
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=device != "cpu" and tower.training):
            found = tower(group[:, : int(group.argmax(-1).max()) + 1])
        out.append(F.normalize(found.float(), dim=-1))
    return torch.cat(out)[order.argsort()]


def widened(*parts: Tensor) -> list[Tensor]:
    """Token ids padded to one length."""
    longest = max(part.shape[1] for part in parts)
    return [F.pad(part, (0, longest - part.shape[1])) for part in parts]


def anchor(nouns: dict[str, Any], draw: random.Random) -> list[int]:
    """A sentence about something that covers no class."""
    before, after = draw.choice(nouns["looks" if draw.random() < 0.25 else "templates"])
    return [*before, *draw.choice(nouns["anchors" if draw.random() < 0.8 else "distractors"]), *after]


def weights_of(target: Tensor, known: Tensor) -> Tensor:
    """Images that show a label count; a label seen in few of them counts more per image, as its square root."""
    seen = known + FLOOR
    mass = (target * seen[:, None]).sum(0)
    weight = seen * (target / (mass + 1).sqrt()).sum(1)
    return weight / weight.sum()


def divergence(logits: Tensor, target: Tensor) -> Tensor:
    return (target * (target.clamp(min=1e-8).log() - logits.log_softmax(-1))).sum(-1)


def held_words(nouns: dict[str, Any], share: float) -> set[str]:
    """The nouns kept for measuring, with their plurals; names of classes are never held back."""
    words = sorted({row["word"] for row in nouns["rows"][1000:]} - {row["word"] for row in nouns["rows"][:1000]})
    return set(random.Random(1).sample(words, round(share * len(words))))


def use_drawer(drawer: Drawer) -> None:
    """Give a process of the pool its drawer."""
    global _drawer
    _drawer = drawer


def draw_set(seed: int) -> LabelSet:
    assert _drawer is not None
    return _drawer(seed)


class Distillation:
    """The second stage of one tower, which is trained in place."""

    def __init__(
        self, tower: TextTower, nouns: dict[str, Any], photos: dict[str, Tensor], options: Settings, device: str
    ) -> None:
        """`photos` as `unpacked` gives them."""
        self.tower, self.options, self.device = tower.to(device).eval(), options, device
        self.log_scale = torch.nn.Parameter(torch.tensor(options.scale, device=device).log())
        before, after = nouns["templates"][0]
        plain = [
            [[*before, *ids, *after] for ids in many]
            for many in ([row["ids"] for row in nouns["rows"]], nouns["distractors"])
        ]
        draw = random.Random(options.seed)
        self.anchors = sentences([anchor(nouns, draw) for _ in range(POOL)], device)
        with torch.no_grad():
            self.first, others = (encode(tower, sentences(texts, device)) for texts in plain)
            self.fixed = encode(tower, self.anchors)
        self.teacher = Teacher(nouns, self.first, others)
        near = (self.first @ others.T).topk(NEAR).indices.tolist()
        held = held_words(nouns, options.hold_out)
        self.drawer = Drawer(nouns, near, lambda row: row["word"] not in held)
        self.unseen = Drawer(
            nouns, near, lambda row: row["word"] in held or (row["word"] == row["text"] and len(row["cover"]) == 1)
        )
        photos = {key: value.to(device) for key, value in photos.items()}
        apart = photos["image"] % 5 == 0 if options.hold_out else torch.zeros_like(photos["image"], dtype=torch.bool)
        self.seen = {key: value[~apart] for key, value in photos.items()}
        self.kept = {key: value[apart & (photos["view"] == 0)] for key, value in photos.items()}

    def train(self, workers: int = 0) -> float:
        """Take all steps; label sets are drawn by `workers` processes. Returns the scale learnt with the tower."""
        options = self.options
        self.report("before")
        parameters = list(self.tower.parameters())
        groups = [{"params": parameters, "rate": options.rate}, {"params": [self.log_scale], "rate": 2e-3}]
        optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), weight_decay=0.0)
        generator = torch.Generator().manual_seed(options.seed)
        seeds = (options.seed * 10**7 + k for k in range(options.steps * SETS))
        pool = multiprocessing.get_context("fork").Pool(workers, use_drawer, (self.drawer,)) if workers else None
        sets = pool.imap(draw_set, seeds, chunksize=SETS) if pool else map(self.drawer, seeds)
        start = time.time()
        self.tower.train()
        for step in range(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = group["rate"] * min(1, (step + 1) / WARM_UP) * (1 - step / options.steps)
            loss, text = self.loss([next(sets) for _ in range(SETS)], generator)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if (step + 1) % REPORT == 0:
                print(f"step {step + 1}/{options.steps} {time.time() - start:.0f}s {text}", flush=True)
        if pool:
            pool.terminate()
        self.report("after")
        return float(self.log_scale.detach().exp())

    def loss(self, sets: list[LabelSet], generator: torch.Generator) -> tuple[Tensor, str]:
        """The loss of one step, and its parts as text."""
        chosen = torch.randperm(len(self.seen["features"]), generator=generator)[:VIEWS].to(self.device)
        views = {key: self.seen[key][chosen] for key in ("features", "classes")}
        labelled = sentences([text for labels in sets for text in labels.texts], self.device)
        some = torch.randint(POOL, (ANCHORS,), generator=generator).to(self.device)
        found = encode(self.tower, torch.cat(widened(labelled, self.anchors[some])))
        rows = torch.tensor([r for labels in sets for r in labels.rows], device=self.device)
        moved = 1 - (found[: len(rows)] * self.first[rows])[rows >= 0].sum(-1).mean()
        drift = 1 - (found[len(rows) :] * self.fixed[some]).sum(-1).mean()
        learning = torch.where(rows[:, None] < 0, found[: len(rows)].detach(), found[: len(rows)])
        fit = torch.zeros((), device=self.device)
        for labels, vectors in zip(sets, learning.split([len(labels.rows) for labels in sets]), strict=True):
            target, known = self.teacher(labels, views)
            logits = self.log_scale.exp() * views["features"] @ vectors.T
            fit = fit + (weights_of(target, known) * divergence(logits, target)).sum() / SETS
        total = fit + self.options.anchor * (drift + self.options.keep * moved)
        parts = torch.stack([fit, drift, moved, self.log_scale.exp()]).tolist()
        return total, "fit {:.4f} drift {:.4f} moved {:.4f} scale {:.2f}".format(*parts)

    def report(self, when: str) -> None:
        """Print the agreement with the teacher on held-back photos, for nouns that take part and for held-back ones."""
        if not self.options.hold_out:
            return
        self.tower.eval()
        for drawer, name in ((self.drawer, "nouns"), (self.unseen, "held-back nouns")):
            print(f"{when}, {name}: {self.measure(drawer)}", flush=True)

    @torch.no_grad()
    def measure(self, drawer: Drawer) -> str:
        """On fixed label sets: answers equal to the teacher's, mean confidence of both (percent), divergence."""
        text = []
        for kind in KINDS if drawer is self.drawer else ("cut", "words"):
            found = torch.zeros(4, device=self.device)
            for number in range(MEASURED):
                labels = drawer(10**6 + number, kind, standard=True)
                target, known = self.teacher(labels, self.kept)
                weight = known * (known > 0.5)
                vectors = encode(self.tower, sentences(labels.texts, self.device))
                logits = self.log_scale.exp() * self.kept["features"] @ vectors.T
                same = (logits.argmax(-1) == target.argmax(-1)).float()
                sure, wanted = logits.softmax(-1).amax(-1), target.amax(-1)
                columns = torch.stack([100 * same, 100 * sure, 100 * wanted, divergence(logits, target)])
                found += (columns * weight).sum(1) / weight.sum().clamp(min=1e-6) / MEASURED
            text.append("{} same {:.1f} confidence {:.1f} / {:.1f} divergence {:.3f}".format(kind, *found.tolist()))
        return "; ".join(text)
