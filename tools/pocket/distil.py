"""Second stage, first half: directions for nouns that say of any label set what the image tower knows.

Teacher: p(class | image) of the image tower's own classifier. Each class gives its share to the labels that cover it,
the narrowest first (a label's weight is one over the number of its classes). Labels that cover no class get what the
first stage gives them beside ImageNet's names: in the place of a label that covers what is seen stands the name of what
is seen. No labels of images are used.

Student: softmax of scale times cosine, with one free direction per name of a class and per noun that covers several, in
the space that the text tower can reach, kept near what it was. All other nouns keep the direction they have. The tower
then learns to give these directions (`refit.py`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from batches import padded
from label_sets import Drawer, LabelSet
from torch import Tensor
from torch.nn import functional as F
from tower import END, START, TextTower

SCALE = 20.5  # of the first stage
OPEN = 0.3  # how much less what no label covers speaks than what some label does: one of the labels is right
FLOOR = 0.1  # least weight of an image on which no label of the set is seen
SETS, VIEWS = 16, 2048  # label sets and views of photos in one step
CALTECH = 10_000  # where its photos begin (`photos.py`)
NEAR = 16  # distractors that are most alike to a noun
WARM_UP, REPORT = 20, 200  # steps
_drawer: Drawer | None = None  # of a process that draws label sets


@dataclass(frozen=True)
class Settings:
    """What was chosen on held-back material, and the share of nouns that is held back to choose."""

    steps: int = 1200
    rate: float = 0.02
    keep: float = 0.3  # weight of 1 - cosine to the first stage's direction, for nouns that cover several classes
    keep_name: float = 10.0  # the same for names of classes
    hold_out: float = 0.0
    seed: int = 0


def members_of(rows: list[dict[str, Any]]) -> Tensor:
    """How far each noun covers each class [n, 1000]."""
    members = torch.zeros(len(rows), 1000)
    for r, row in enumerate(rows):
        classes, weights = zip(*row["cover"], strict=True)
        members[r, list(classes)] = torch.tensor(weights)
    return members


def share_of(members: Tensor) -> Tensor:
    """How much of each class every label gets [1000, n]: a label's weight is one over the number of its classes."""
    share = members / members.sum(1, keepdim=True).clamp(min=1)
    return (members.amax(0) * share / share.sum(0).clamp(min=1e-9)).T


def known_of(covered: Tensor) -> Tensor:
    """How far an answer comes from what some label covers, from the probability that the labels cover."""
    return covered.square() / (covered.square() + OPEN * (1 - covered).square())


class Teacher:
    """Answers over any label set, from the distribution over the 1000 classes."""

    def __init__(self, nouns: dict[str, Any], old: Tensor, others: Tensor) -> None:
        """`old` [N, D] and `others` [O, D] are the first stage's directions of nouns and distractors."""
        members = F.pad(members_of(nouns["rows"]), (0, 0, 0, len(others)))
        self.members = members.to(old.device)
        self.old = torch.cat([old, others])
        self.first_other = len(nouns["rows"])

    def at(self, labels: LabelSet) -> Tensor:
        """Where the labels are in `old` [n]."""
        rows = [r if r >= 0 else self.first_other + o for r, o in zip(labels.rows, labels.others, strict=True)]
        return torch.tensor(rows, device=self.old.device)

    def __call__(self, labels: LabelSet, photos: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Probabilities of the labels [B, n], and how far they come from what some label covers [B]."""
        at, classes = self.at(labels), photos["classes"]
        share = share_of(self.members[at])
        sums = classes @ share
        covered = sums.sum(-1, keepdim=True)
        known = known_of(covered)
        before = SCALE * photos["features"] @ self.old[at].T
        other = at >= self.first_other
        inside = before.masked_fill(other, -torch.inf).softmax(-1)
        inside = known * sums / covered.clamp(min=1e-9) + (1 - known) * inside
        if not other.any():
            return inside, known[:, 0]
        names = SCALE * photos["features"] @ self.old[:1000].T
        beside = ((classes * names) @ share + (1 - sums) * before).softmax(-1)
        left = 1 - (beside * other).sum(-1, keepdim=True)
        return torch.where(other, beside, left * inside), known[:, 0]


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


@torch.no_grad()
def encode(tower: TextTower, texts: list[list[int]], device: str, chunk: int = 4096) -> Tensor:
    """Unit vectors [N, D] of texts; those of like length together."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    parts = [sentences([texts[i] for i in order[k : k + chunk]], device) for k in range(0, len(order), chunk)]
    found = torch.cat([F.normalize(tower(part), dim=-1) for part in parts])
    return found[torch.tensor(order, device=device).argsort()]


def standard(nouns: dict[str, Any], words: list[list[int]]) -> list[list[int]]:
    """Words in the standard template."""
    before, after = nouns["templates"][0]
    return [[*before, *word, *after] for word in words]


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
    names = {row["word"] for row in nouns["rows"][:1000]}
    words = sorted({row["word"] for row in nouns["rows"] if not row["pair"]} - names)
    return set(random.Random(1).sample(words, round(share * len(words))))


def owners(rows: list[dict[str, Any]]) -> list[int]:
    """For each row, the first with the same tokens: one text has one direction."""
    first: dict[tuple[int, ...], int] = {}
    return [first.setdefault(tuple(row["ids"]), r) for r, row in enumerate(rows)]


def use_drawer(drawer: Drawer) -> None:
    """Give a process of the pool its drawer."""
    global _drawer
    _drawer = drawer


def draw_set(seed: int) -> LabelSet:
    assert _drawer is not None
    return _drawer(seed)


@contextlib.contextmanager
def drawn(drawer: Drawer, steps: int, seed: int, workers: int) -> Iterator[Iterator[LabelSet]]:
    """The label sets of all steps, in order, drawn by `workers` processes."""
    seeds = (seed * 10**7 + k for k in range(steps * SETS))
    if not workers:
        yield map(drawer, seeds)
        return
    with multiprocessing.get_context("fork").Pool(workers, use_drawer, (drawer,)) as pool:
        yield pool.imap(draw_set, seeds, chunksize=SETS)


class Directions:
    """One direction per noun: those of the first stage, and the ones that are learnt from photos without labels."""

    def __init__(
        self, tower: TextTower, nouns: dict[str, Any], photos: dict[str, Tensor], options: Settings, device: str
    ) -> None:
        """`tower` is the first stage's, `photos` as `unpacked` gives them."""
        self.nouns, self.options, self.device = nouns, options, device
        self.basis = torch.linalg.qr(tower.text_projection.detach().T.to(device)).Q  # [D, width]: what texts can reach
        words = [row["ids"] for row in nouns["rows"]]
        first = encode(tower, standard(nouns, words), device)
        others = encode(tower, standard(nouns, nouns["distractors"]), device)
        self.first, self.others = (F.normalize(part @ self.basis, dim=-1) for part in (first, others))
        self.teacher = Teacher(nouns, self.first, self.others)
        near = (self.first @ self.others.T).topk(NEAR).indices.tolist()
        held = held_words(nouns, options.hold_out)
        self.drawer = Drawer(nouns, near, lambda row: not row["pair"] and row["word"] not in held)
        self.unseen = Drawer(
            nouns, near, lambda row: row["word"] in held or (row["word"] == row["text"] and len(row["cover"]) == 1)
        )
        owner, rows = owners(nouns["rows"]), nouns["rows"]
        self.owner = torch.tensor(owner, device=device)
        self.free = [
            r
            for r, row in enumerate(rows)
            if owner[r] == r and row["word"] not in held and not row["pair"] and (r < 1000 or len(row["cover"]) > 1)
        ]
        several = torch.tensor([len(row["cover"]) > 1 for row in rows], device=device)
        self.keep = torch.where(several, options.keep, options.keep_name)
        photos = {key: value.to(device) for key, value in photos.items()}
        photos["whole"] = photos["features"]  # in the joint space
        photos["features"] = photos["features"] @ self.basis
        apart = photos["image"] % 5 == 0
        self.photos = photos
        self.seen = {key: value[~apart] for key, value in photos.items()} if options.hold_out else photos
        self.kept = {key: value[apart & (photos["view"] == 0)] for key, value in photos.items()}

    def learn(self, workers: int = 0) -> Tensor:
        """All steps; label sets are drawn by `workers` processes. Returns the directions of all nouns [N, D]."""
        options, at = self.options, torch.tensor(self.free, device=self.device)
        learnt = torch.nn.Parameter(self.first[at].clone())
        optimizer = torch.optim.Adam([learnt], betas=(0.9, 0.99))
        generator, start = torch.Generator().manual_seed(options.seed), time.time()
        with drawn(self.drawer, options.steps, options.seed, workers) as sets:
            for step in range(options.steps):
                rate = options.rate * min(1, (step + 1) / WARM_UP) * (1 - step / options.steps)
                optimizer.param_groups[0]["lr"] = rate
                directions = self.first.index_put((at,), F.normalize(learnt, dim=-1))[self.owner]
                fit, moved = self.loss([next(sets) for _ in range(SETS)], directions, generator)
                optimizer.zero_grad(set_to_none=True)
                (fit + moved).backward()
                optimizer.step()
                if (step + 1) % REPORT == 0:
                    texts = f"fit {fit.item():.4f} moved {moved.item():.4f}"
                    print(f"directions: step {step + 1}/{options.steps} {time.time() - start:.0f}s {texts}", flush=True)
        return F.normalize(self.first.index_put((at,), learnt.detach()), dim=-1)[self.owner]

    def loss(self, sets: list[LabelSet], nouns: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Divergence from the teacher on some photos, and how far the nouns of label sets have moved, weighted."""
        chosen = torch.randperm(len(self.seen["features"]), generator=generator)[:VIEWS].to(self.device)
        views = {key: self.seen[key][chosen] for key in ("features", "classes")}
        directions = torch.cat([nouns, self.others])
        away = self.keep * (1 - (nouns * self.first).sum(-1))
        fit = moved = torch.zeros((), device=self.device)
        for labels in sets:
            target, known = self.teacher(labels, views)
            logits = SCALE * views["features"] @ directions[self.teacher.at(labels)].T
            fit = fit + (weights_of(target, known) * divergence(logits, target)).sum() / SETS
            moved = moved + away[[r for r in labels.rows if r >= 0]].mean() / SETS
        return fit, moved
