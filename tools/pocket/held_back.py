"""How a tower answers on photos and nouns that were held back (`--hold-out`), to choose between towers.

Agreement with the teacher (`distil.py`), with the first stage where nothing should change, and the accuracy on
Caltech101's train images, whose labels serve here and for the scale (`export.py`) alone.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import torch
from distil import CALTECH, SCALE, Directions, divergence, encode, standard
from label_sets import KINDS, Drawer
from refit import APART
from torch import Tensor
from torch.nn import functional as F
from tower import TextTower

MEASURED, UNCHANGED = 40, 200  # label sets of each kind, and of nouns that should not change


def report(tower: TextTower, directions: Directions, data: Path) -> str:
    """All that is measured, a line each."""
    nouns = directions.nouns
    words = [row["ids"] for row in nouns["rows"]]
    found = encode(tower, standard(nouns, words + nouns["distractors"]), directions.device)
    texts = [f"nouns: {agreement(directions, found, directions.drawer)}"]
    if directions.options.hold_out:
        texts.append(f"held-back nouns: {agreement(directions, found, directions.unseen)}")
    texts.append(f"nouns that cover no class: {unchanged(directions, found)}")
    split = data / "caltech-101" / "split_zhou_Caltech101.json"
    if split.exists():
        texts.append(f"Caltech101, train: {accuracy(tower, directions, split):.2f}")
    return "\n".join(texts)


@torch.no_grad()
def agreement(own: Directions, found: Tensor, drawer: Drawer) -> str:
    """On fixed label sets: answers equal to the teacher's, mean confidence of both (percent), divergence.

    `found` [N + O, D] are the directions of nouns and distractors.
    """
    text = []
    for kind in KINDS if drawer is own.drawer else ("cut", "words"):
        sums = torch.zeros(4, device=own.device)
        for number in range(MEASURED):
            labels = drawer(10**6 + number, kind)
            target, known = own.teacher(labels, own.kept)
            weight = known * (known > 0.5)
            logits = SCALE * own.kept["whole"] @ found[own.teacher.at(labels)].T
            same = (logits.argmax(-1) == target.argmax(-1)).float()
            sure, wanted = logits.softmax(-1).amax(-1), target.amax(-1)
            columns = torch.stack([100 * same, 100 * sure, 100 * wanted, divergence(logits, target)])
            sums += (columns * weight).sum(1) / weight.sum().clamp(min=1e-6) / MEASURED
        text.append("{} same {:.1f} confidence {:.1f} / {:.1f} divergence {:.3f}".format(kind, *sums.tolist()))
    return "; ".join(text)


@torch.no_grad()
def unchanged(own: Directions, found: Tensor) -> str:
    """Random label sets of nouns that cover no class: answers equal to the first stage's."""
    draw, same = random.Random(2), []
    before = torch.cat([own.first, own.others]) @ own.basis.T
    pool = range(len(own.first), len(before), APART)
    for _ in range(UNCHANGED):
        at = draw.sample(pool, min(len(pool), round(math.exp(draw.uniform(math.log(2), math.log(200))))))
        old, new = ((own.kept["whole"] @ part[at].T).argmax(-1) for part in (before, found))
        same.append((old == new).float().mean())
    cosine = F.cosine_similarity(found[len(own.first) :], before[len(own.first) :]).mean()
    return f"same as before {100 * torch.stack(same).mean():.2f} cosine {cosine:.4f}"


@torch.no_grad()
def accuracy(tower: TextTower, own: Directions, split: Path) -> float:
    """Percent of Caltech101's train images that are given their own name, among its 100 names."""
    from open_clip.tokenizer import SimpleTokenizer

    rows = json.loads(split.read_text())["train"]
    names = dict(sorted({(label, name.replace("_", " ")) for _, label, name in rows}))
    ids = [SimpleTokenizer().encode(name) for name in names.values()]
    texts = encode(tower, standard(own.nouns, ids), own.device)
    whole = {key: own.photos[key][(own.photos["view"] == 0) & (own.photos["image"] >= CALTECH)] for key in own.photos}
    labels = torch.tensor([label for _, label, _ in rows], device=own.device)[whole["image"] - CALTECH]
    return 100 * ((whole["whole"] @ texts.T).argmax(-1) == labels).float().mean().item()
