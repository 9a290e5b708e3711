"""Training texts, put together on the device: a template, a piece of text, sometimes an adjective or a second thing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from targets import Targets
from torch import Tensor
from torch.nn import functional as F
from tower import START

SHARES = {"names": 0.35, "words": 0.35, "plurals": 0.03, "pieces": 0.07, "gloss": 0.20}
STANDARD, LOOKS = 0.30, 0.25  # share of the standard template and of those that claim a look; the rest is plain
TOKENS = 18  # a definition's first words say most
ADJECTIVE, PAIR = 0.08, 0.05
SECOND_WEIGHT = 0.5  # how much the second thing of a pair counts


def padded(rows: list[list[int]], device: str) -> Tensor:
    """Ragged ids -> [N, longest], -1 where there is none."""
    longest = max(map(len, rows), default=1) or 1
    return torch.tensor([row + [-1] * (longest - len(row)) for row in rows], device=device)


def word_weights(corpus: dict[str, Any], trust: Tensor) -> Tensor:
    """Common words, and words for photographed things, are drawn more often."""
    seen = set(corpus["photographed"])
    weights = [
        (1 + torch.log1p(torch.tensor(float(max(c for _, c in senses)))).item())
        * (3.0 if senses[0][0] in seen else 1.0)
        for senses in corpus["senses"]
    ]
    return torch.tensor(weights, device=trust.device) * trust


@dataclass(frozen=True)
class Drawn:
    """Token ids [N, L] of sentences, and what they are made of: pieces, second things where `pair`, templates."""

    ids: Tensor
    piece: Tensor
    other: Tensor
    pair: Tensor
    template: Tensor


class Sentences:
    """Draws sentences about the pieces of some groups; batch `step` depends on the seed and `step` alone."""

    def __init__(
        self,
        ids: dict[str, Any],
        groups: dict[str, tuple[list[list[int]], Tensor]],
        shares: dict[str, float],
        looks: Collection[str],
    ) -> None:
        """`groups` has the token ids of pieces and how often each is drawn; the last, "gloss", are definitions.

        Templates that claim a look are drawn for the `looks` that are given.
        """
        device = str(next(iter(groups.values()))[1].device)
        self.pieces = padded([row[:TOKENS] for rows, _ in groups.values() for row in rows], device)
        parts = [shares[name] * weight.double() / weight.double().sum() for name, (_, weight) in groups.items()]
        self.sums = torch.cat(parts).cumsum(0)
        self.gloss_from = len(self.pieces) - len(groups["gloss"][0])
        self.adjectives = padded(ids["adjectives"], device)
        self.second = padded(ids["second"], device)
        templates = [ids["standard"], *ids["plain"], ([], [])]
        self.looking = [(look, b, a) for look, b, a in ids["looks"] if look in looks]
        self.before = padded([b for b, _ in templates] + [b for _, b, _ in self.looking], device)
        self.after = padded([a for _, a in templates] + [a for _, _, a in self.looking], device)
        self.plain, many = len(templates), len(self.looking)
        share = torch.zeros(self.plain + many, dtype=torch.double, device=device)
        share[0], share[self.plain :] = STANDARD, LOOKS / max(many, 1)
        share[1 : self.plain] = (1 - STANDARD - (LOOKS if many else 0)) / (self.plain - 1)
        self.template_sums = share.cumsum(0)
        self.bare = self.plain - 1  # the template that is nothing but the text
        self.device = device

    def pick(self, sums: Tensor, n: int, generator: torch.Generator) -> Tensor:
        at = torch.rand(n, generator=generator, device=self.device, dtype=torch.double) * sums[-1]
        return torch.searchsorted(sums, at).clamp(max=len(sums) - 1)

    def __call__(self, step: int, n: int, seed: int = 0) -> Drawn:
        generator = torch.Generator(self.device).manual_seed(seed * 1_000_003 + step)
        piece, other = self.pick(self.sums, n, generator), self.pick(self.sums, n, generator)
        template = self.pick(self.template_sums, n, generator)
        chance = torch.rand(n, 3, generator=generator, device=self.device)
        defined = piece >= self.gloss_from
        template = torch.where(defined & (chance[:, 2] < 0.6), self.bare, template)
        pair = (chance[:, 1] < PAIR) & ~defined & (other < self.gloss_from)
        adjective = self.adjectives[torch.randint(len(self.adjectives), (n,), generator=generator, device=self.device)]
        adjective = adjective.masked_fill(((chance[:, 0] >= ADJECTIVE) | defined)[:, None], -1)
        second = self.second[torch.randint(len(self.second), (n,), generator=generator, device=self.device)]
        second = torch.cat([second, self.pieces[other][:, :8]], 1).masked_fill(~pair[:, None], -1)
        start = torch.full((n, 1), START, device=self.device)
        parts = [start, self.before[template], adjective, self.pieces[piece], second, self.after[template], start + 1]
        return Drawn(close_up(torch.cat(parts, 1)), piece, other, pair, template)


class Sampler:
    """The first stage's batches of (ids, target, weight)."""

    def __init__(
        self, corpus: dict[str, Any], targets: Targets, rows: Tensor, looks: dict[str, Tensor], held_out: Tensor | None
    ) -> None:
        device = str(rows.device)
        directions = {
            "names": rows,
            "words": targets.words,
            "plurals": targets.plurals,
            "pieces": targets.pieces,
            "gloss": targets.synsets,
        }
        trust = {
            "names": torch.ones(len(rows), device=device),
            "words": targets.word_trust,
            "plurals": torch.ones(len(targets.plurals), device=device),
            "pieces": targets.piece_trust,
            "gloss": targets.synset_trust,
        }
        draw = trust | {"words": word_weights(corpus, targets.word_trust)}
        if held_out is not None:
            draw["words"] = draw["words"].masked_fill(held_out, 0)
        groups = {name: (corpus["ids"][name], draw[name]) for name in directions}
        self.sentences = Sentences(corpus["ids"], groups, SHARES, looks)
        self.targets = torch.cat(list(directions.values()))
        self.trust = torch.cat(list(trust.values()))
        shifts = [looks[look].to(device) for look, _, _ in self.sentences.looking]
        self.shift = torch.stack([torch.zeros_like(rows[0])] * self.sentences.plain + shifts)

    def __call__(self, step: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        drawn = self.sentences(step, n, seed)
        second = SECOND_WEIGHT * drawn.pair[:, None] * self.targets[drawn.other]
        target = F.normalize(self.targets[drawn.piece] + second, dim=-1)
        target = F.normalize(target + self.shift[drawn.template], dim=-1)
        return drawn.ids, target, self.trust[drawn.piece]


def close_up(ids: Tensor) -> Tensor:
    """Move every id to the left over the gaps; what follows the end token is 0, which a causal tower never reads."""
    order = (ids < 0).to(torch.uint8).sort(dim=1, stable=True).indices
    ids = ids.gather(1, order)
    longest = int((ids >= 0).sum(1).max())
    return ids[:, :longest].clamp(min=0)
