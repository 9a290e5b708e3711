"""Random label sets of 2 to 1000 nouns, as people write them: kinds of one thing, cuts of the tree, anything at all."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LARGEST = 200
KINDS = {"cut": 0.45, "words": 0.25, "common": 0.15, "names": 0.15}
FEW, COMMON = 20, 200  # labels of a set of kind "common", and of how many nouns they are drawn


@dataclass(frozen=True)
class LabelSet:
    """The noun's row (-1: covers nothing) and, if it covers nothing, the distractor."""

    rows: list[int]
    others: list[int]


class Drawer:
    """Draws label sets from the nouns that `allowed` admits; equal seeds give equal sets."""

    def __init__(self, nouns: dict[str, Any], near: list[list[int]], allowed: Callable[[dict[str, Any]], bool]) -> None:
        """`near` lists the distractors that are most alike to each noun."""
        self.near = near
        self.nouns, self.rows, self.nodes = nouns, nouns["rows"], nouns["nodes"]
        self.admitted = [allowed(row) for row in self.rows]
        self.words = [i for i, ok in enumerate(self.admitted) if ok]
        self.weights = [self.rows[i]["weight"] for i in self.words]
        by_use = sorted((len(self.rows[i]["cover"]) < 2, -self.rows[i]["weight"], i) for i in self.words)
        self.common = [i for _, _, i in by_use[:COMMON]]
        self.classes = [i for i in range(1000) if self.admitted[i]]
        self.named = [[r for r in node["rows"] if self.admitted[r]] for node in self.nodes]
        self.roots = [i for i, node in enumerate(self.nodes) if node["size"] > 3 and len(node["children"]) > 1]

    def __call__(self, seed: int, kind: str | None = None, *, distractors: bool = True) -> LabelSet:
        """One label set; its kind is drawn unless given."""
        draw = random.Random(seed)
        kind = kind or draw.choices(list(KINDS), list(KINDS.values()))[0]
        size = round(math.exp(draw.uniform(math.log(2), math.log(LARGEST))))
        if kind == "names":
            size = draw.choice([size, LARGEST, 1000]) if draw.random() < 0.5 else size
            rows = draw.sample(self.classes, min(size, len(self.classes)))
        elif kind == "common":
            rows = draw.sample(self.common, min(draw.randint(2, FEW), len(self.common)))
        else:
            rows = self.cut(draw, size) if kind == "cut" else []
            fill = size - len(rows) if len(rows) < 2 or kind == "words" else round(draw.choice([0, 0, 0.3]) * size)
            rows += draw.choices(self.words, self.weights, k=max(fill, 2 - len(rows)))
        rows = list(dict.fromkeys(rows))
        others = self.distractors(draw, rows) if distractors else []
        return LabelSet(rows + [-1] * len(others), [-1] * len(rows) + others)

    def distractors(self, draw: random.Random, rows: list[int]) -> list[int]:
        """Nouns that cover no class, of any kind or like one of the labels."""
        many = round(len(rows) * draw.choice([0, 0, 0.3, 1.0])) if len(rows) < LARGEST else 0
        count = len(self.nouns["distractors"])
        close = draw.choice([0.0, 0.5])
        return list(
            dict.fromkeys(
                draw.choice(self.near[draw.choice(rows)]) if draw.random() < close else draw.randrange(count)
                for _ in range(many)
            )
        )

    def cut(self, draw: random.Random, size: int) -> list[int]:
        """Split a node of the tree into its children, and these again, until there are enough; some are left out."""
        nodes = {draw.choice(self.roots) if draw.random() < 0.7 else 0}
        for _ in range(4 * size):
            open_ = [n for n in sorted(nodes) if self.nodes[n]["children"]]
            if len(nodes) >= size or not open_:
                break
            chosen = draw.choices(open_, [self.nodes[n]["size"] for n in open_])[0]
            nodes = (nodes - {chosen}) | set(self.nodes[chosen]["children"])
        kept = sorted(nodes)
        draw.shuffle(kept)
        kept = kept[: max(2, round(draw.choice([1.0, 1.0, 0.7, 0.4]) * len(kept)))]
        named = [self.named[n] for n in kept if self.named[n]]
        return [names[0] if draw.random() < 0.5 else draw.choice(names) for names in named]
