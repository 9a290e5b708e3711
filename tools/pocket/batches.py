"""Training texts, put together on the device: a template, a piece of text, sometimes an adjective or a second thing."""

from __future__ import annotations

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


class Sampler:
    """Draws batches of (ids, target, weight); batch number `step` depends on the seed and `step` alone."""

    def __init__(
        self, corpus: dict[str, Any], targets: Targets, rows: Tensor, looks: dict[str, Tensor], held_out: Tensor | None
    ) -> None:
        device = str(rows.device)
        ids = corpus["ids"]
        groups = {
            "names": rows,
            "words": targets.words,
            "plurals": targets.plurals,
            "pieces": targets.pieces,
            "gloss": targets.synsets,
        }
        self.pieces = padded([row[:TOKENS] for group in groups for row in ids[group]], device)
        self.targets = torch.cat(list(groups.values()))
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
        self.trust = torch.cat(list(trust.values()))
        self.sums = torch.cat([SHARES[g] * draw[g].double() / draw[g].double().sum() for g in groups]).cumsum(0)
        self.gloss_from = sum(len(t) for g, t in groups.items() if g != "gloss")
        self.adjectives = padded(ids["adjectives"], device)
        self.second = padded(ids["second"], device)
        templates = [ids["standard"], *ids["plain"], ([], [])]
        looking = [(look, b, a) for look, b, a in ids["looks"] if look in looks]
        self.before = padded([b for b, _ in templates] + [b for _, b, _ in looking], device)
        self.after = padded([a for _, a in templates] + [a for _, _, a in looking], device)
        plain, many = len(templates), len(looking)
        self.shift = torch.zeros(plain + many, rows.shape[1], device=device)
        for i, (look, _, _) in enumerate(looking):
            self.shift[plain + i] = looks[look].to(device)
        share = torch.zeros(plain + many, dtype=torch.double, device=device)
        share[0], share[plain:] = STANDARD, LOOKS / max(many, 1)
        share[1:plain] = (1 - STANDARD - (LOOKS if many else 0)) / (plain - 1)
        self.template_sums = share.cumsum(0)
        self.bare = plain - 1  # the template that is nothing but the text
        self.device = device

    def pick(self, sums: Tensor, n: int, generator: torch.Generator) -> Tensor:
        at = torch.rand(n, generator=generator, device=self.device, dtype=torch.double) * sums[-1]
        return torch.searchsorted(sums, at).clamp(max=len(sums) - 1)

    def __call__(self, step: int, n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
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
        target = self.targets[piece] + SECOND_WEIGHT * pair[:, None] * self.targets[other]
        target = F.normalize(F.normalize(target, dim=-1) + self.shift[template], dim=-1)
        return close_up(torch.cat(parts, 1)), target, self.trust[piece]


def close_up(ids: Tensor) -> Tensor:
    """Move every id to the left over the gaps; what follows the end token is 0, which a causal tower never reads."""
    order = (ids < 0).to(torch.uint8).sort(dim=1, stable=True).indices
    ids = ids.gather(1, order)
    longest = int((ids >= 0).sum(1).max())
    return ids[:, :longest].clamp(min=0)
