"""A direction in the joint space for every noun, by Gaussian-process regression from what text says about it.

Known: the 1000 classes and their WordNet ancestors (each the mean of its classes). The kernel between two synsets adds
the likeness of their definitions, of their words (MiniLM) and of their places in WordNet's tree; its settings were
chosen on classes left out of the regression. A word is the mixture of its meanings, visible ones first; a piece of
text that WordNet doesn't know is the mixture of the words nearest to it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from minilm import SentenceEncoder
from torch import Tensor
from torch.nn import functional as F

GLOSS, TREE, NAME = (1.0, 0.2), (0.15, 0.1), (0.2, 0.1)  # weight and temperature of each part of the kernel
NOISE = 0.3
NEIGHBOURS = 0.06  # temperature of the mixture of nearest words
UNPHOTOGRAPHED, IMMATERIAL = 0.3, 0.02  # how much less a meaning counts that nobody photographed, or that has no body


@dataclass(frozen=True)
class Targets:
    """Unit directions [N, D] and how far each can be believed [N], 0..1."""

    synsets: Tensor
    words: Tensor
    plurals: Tensor
    pieces: Tensor
    synset_trust: Tensor
    word_trust: Tensor
    piece_trust: Tensor
    vocabulary: Tensor  # [49408, 384] sentence vectors of CLIP's word pieces, to start the token table from


def ancestor_lists(parents: list[list[int]]) -> list[set[int]]:
    """Each synset's ancestors, itself included."""
    found: dict[int, set[int]] = {}

    def up(i: int) -> set[int]:
        if i not in found:
            found[i] = {i}.union(*(up(p) for p in parents[i]))
        return found[i]

    return [up(i) for i in range(len(parents))]


def tree_features(
    parents: list[list[int]], ancestors: list[set[int]], photographed: list[int], columns: dict[int, int]
) -> Tensor:
    """Rows whose dot product is the information shared by two places in the tree (Lin's likeness)."""
    counts: dict[int, int] = defaultdict(int)
    for i in photographed:
        for a in ancestors[i]:
            counts[a] += 1
    content = [math.log((len(photographed) + 1) / (counts[i] + 1)) for i in range(len(parents))]
    step = [max(content[i] - max((content[p] for p in parents[i]), default=0.0), 0.05) for i in range(len(parents))]
    out = torch.zeros(len(parents), len(columns))
    for i, found in enumerate(ancestors):
        norm = math.sqrt(sum(step[a] for a in found))
        for a in found:
            if a in columns:  # others are shared with no known synset
                out[i, columns[a]] = math.sqrt(step[a]) / norm
    return out


def known(corpus: dict[str, Any], ancestors: list[set[int]], rows: Tensor) -> tuple[list[int], Tensor]:
    """The synsets whose direction is given: the classes, and each of their ancestors as the mean of its classes."""
    members: dict[int, list[int]] = defaultdict(list)
    for c, synset in enumerate(corpus["wnids"]):
        for a in ancestors[synset]:
            members[a].append(c)
    own = {synset: c for c, synset in enumerate(corpus["wnids"])}
    items = corpus["wnids"] + [s for s in members if s not in own]
    targets = [rows[own[s]] if s in own else F.normalize(rows[members[s]].mean(0), dim=0) for s in items]
    return items, torch.stack(targets)


def kernel(parts: list[tuple[tuple[float, float], Tensor, Tensor]]) -> Tensor:
    """Sum of exp((cosine - 1) / temperature), weighted."""
    return sum(weight * torch.exp((a @ b.T - 1) / heat) for (weight, heat), a, b in parts)  # type: ignore[return-value]


def regress(corpus: dict[str, Any], rows: Tensor, gloss: Tensor, name: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Directions and trust of all synsets."""
    parents = corpus["synsets"]["parents"]
    ancestors = ancestor_lists(parents)
    items, given = known(corpus, ancestors, rows)
    tree = tree_features(parents, ancestors, corpus["photographed"], {s: i for i, s in enumerate(items)})
    tables = [(setting, table.to(device)) for setting, table in ((GLOSS, gloss), (TREE, tree), (NAME, name))]
    at = torch.tensor(items, device=device)
    square = kernel([(s, t[at], t[at]) for s, t in tables]).double()
    weights = torch.linalg.solve(
        square + NOISE * torch.eye(len(items), device=device), given.to(device).double()
    ).float()
    out = torch.cat(
        [
            kernel([(s, t[first : first + 8192], t[at]) for s, t in tables]) @ weights
            for first in range(0, len(parents), 8192)
        ]
    )
    trust = (out.norm(dim=-1) / 0.3).clamp(0.05, 1)
    out = F.normalize(out, dim=-1)
    out[at], trust[at] = given.to(device), 1.0
    return out, trust


def mix_senses(corpus: dict[str, Any], synsets: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
    """Words as mixtures of their meanings: common and visible ones weigh more."""
    seen = set(corpus["photographed"])
    ancestors = ancestor_lists(corpus["synsets"]["parents"])
    rows, columns, values = [], [], []
    for w, senses in enumerate(corpus["senses"]):
        weights = []
        for rank, (s, count) in enumerate(senses):
            visible = 1.0 if s in seen else UNPHOTOGRAPHED if corpus["physical"] in ancestors[s] else IMMATERIAL
            weights.append(visible * (count + 1) / (1 + 0.3 * rank))
        rows += [w] * len(senses)
        columns += [s for s, _ in senses]
        values += [v / sum(weights) for v in weights]
    mix = torch.sparse_coo_tensor(
        torch.tensor([rows, columns]),
        torch.tensor(values),
        (len(corpus["senses"]), len(synsets)),
        check_invariants=False,
    )
    mix = mix.to(synsets.device)
    return F.normalize(torch.sparse.mm(mix, synsets), dim=-1), torch.sparse.mm(mix, trust[:, None])[:, 0]


def nearest_words(queries: Tensor, table: Tensor, directions: Tensor, trust: Tensor) -> tuple[Tensor, Tensor]:
    """Mixture of the words nearest in meaning."""
    out, sure = [], []
    for first in range(0, len(queries), 2048):
        likeness, found = (queries[first : first + 2048] @ table.T).topk(32)
        weights = torch.softmax((likeness - 1) / NEIGHBOURS, -1) * trust[found]
        mixed = (weights[..., None] * directions[found]).sum(1) / weights.sum(-1, keepdim=True)
        out.append(F.normalize(mixed, dim=-1))
        sure.append((mixed.norm(dim=-1) * (likeness[:, 0] - 0.2)).clamp(0.05, 0.5))
    return torch.cat(out), torch.cat(sure)


def build(corpus: dict[str, Any], rows: Tensor, encoder: SentenceEncoder) -> Targets:
    """All targets of the corpus on the encoder's device."""
    device = encoder.device
    synsets = corpus["synsets"]
    gloss = encoder(synsets["gloss"], progress=True)
    name = encoder([", ".join(w[:3]) for w in synsets["words"]], progress=True)
    directions, trust = regress(corpus, rows, gloss, name, device)
    words, word_trust = mix_senses(corpus, directions, trust)
    table = encoder(corpus["words"], progress=True).to(device)
    pieces, piece_trust = nearest_words(encoder(corpus["pieces"]).to(device), table, words, word_trust)
    row = {w: i for i, w in enumerate(corpus["words"])}
    plurals = words[torch.tensor([row[w] for w in corpus["singulars"]], device=device)]
    vocabulary = encoder(corpus["vocabulary"], progress=True)
    return Targets(directions, words, plurals, pieces, trust, word_trust, piece_trust, vocabulary)
