"""Which of ImageNet's 1000 classes each noun covers, and WordNet's tree above these classes.

A noun covers a class if the class is one of its meanings or a kind of it. Meanings count as in `targets.mix_senses`; a
noun whose meanings are mostly of another kind ("record", "school") covers nothing. All rows are token ids, so that
training needs neither WordNet nor a tokenizer.
"""

from __future__ import annotations

import json
import lzma
import math
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

from corpus import plural
from targets import IMMATERIAL, UNPHOTOGRAPHED, ancestor_lists
from templates import JOINTS

COVERED = 0.3  # least share of a word's meanings that must be seen in ImageNet's classes
NAMES_NODE = 0.6  # least share that a word's classes and a node's have in common for the word to name the node
COMMONEST = 4.0  # how much oftener the commonest nouns are drawn than the rarest
PAIRS = 2500
DRAWN = 60_000  # nouns that cover nothing: as often, common ones oftener, one is drawn to be a distractor


def members_of_synsets(corpus: dict[str, Any], ancestors: list[set[int]]) -> dict[int, list[int]]:
    """synset -> the classes at or below it."""
    found: dict[int, list[int]] = defaultdict(list)
    for c, synset in enumerate(corpus["wnids"]):
        for a in ancestors[synset]:
            found[a].append(c)
    return dict(found)


def members_of_words(
    corpus: dict[str, Any], members: dict[int, list[int]], ancestors: list[set[int]]
) -> list[dict[int, float]]:
    """For each word, the classes that it covers with their weight (the largest is 1); nothing for most words."""
    seen, physical = set(corpus["photographed"]), corpus["physical"]
    out = []
    for senses in corpus["senses"]:
        cover: dict[int, float] = defaultdict(float)
        total = covered = 0.0
        for rank, (s, count) in enumerate(senses):
            visible = 1.0 if s in seen or s in members else UNPHOTOGRAPHED if physical in ancestors[s] else IMMATERIAL
            weight = visible * (count + 1) / (1 + 0.3 * rank)
            total += weight
            if s in members:
                covered += weight
                for c in members[s]:
                    cover[c] += weight
        top = max(cover.values(), default=0.0)
        kept = {c: round(v / top, 3) for c, v in cover.items() if v >= 0.1 * top} if covered >= COVERED * total else {}
        out.append(kept)
    return out


def build(corpus: dict[str, Any], seed: int = 0) -> dict[str, Any]:
    """Rows of nouns (ids, cover, weight, root word), nodes of the tree (children, rows), and distractors."""
    draw = random.Random(seed)
    ancestors = ancestor_lists(corpus["synsets"]["parents"])
    members = members_of_synsets(corpus, ancestors)
    covers = members_of_words(corpus, members, ancestors)
    ids, rows = corpus["ids"], []
    row_of: dict[str, int] = {}

    def add(
        text: str, tokens: list[int], cover: dict[int, float], weight: float, word: str, *, pair: bool = False
    ) -> None:
        row_of.setdefault(text, len(rows))
        row = {"text": text, "ids": tokens, "cover": sorted(cover.items()), "weight": weight, "word": word}
        rows.append(row | {"pair": pair})

    for c, name in enumerate(corpus["names"]):
        add(name, ids["names"][c], {c: 1.0}, 1.0, name)
    common = {}
    for w, word in enumerate(corpus["words"]):
        common[word] = min(COMMONEST, 1 + math.log1p(max(count for _, count in corpus["senses"][w])))
        if covers[w] and word not in row_of:
            add(word, ids["words"][w], covers[w], common[word], word)
    for p, (text, word) in enumerate(zip(corpus["plurals"], corpus["singulars"], strict=True)):
        if word in row_of and text not in row_of:
            add(text, ids["plurals"][p], dict(rows[row_of[word]]["cover"]), 0.3 * common.get(word, 1.0), word)
    nodes = tree(corpus, members, rows, row_of)
    families = [node for node in nodes if len(node["children"]) > 1]
    for _ in range(PAIRS):
        pair = [nodes[k]["rows"] for k in draw.sample(draw.choice(families)["children"], 2)]
        if all(pair):
            first, second = (rows[draw.choice(names)] for names in pair)
            cover = dict(second["cover"])
            for c, v in first["cover"]:
                cover[c] = max(v, cover.get(c, 0.0))
            joint = draw.randrange(len(JOINTS))
            text = f"{first['text']} {JOINTS[joint]} {second['text']}"
            add(text, first["ids"] + ids["joints"][joint] + second["ids"], cover, 0.3, text, pair=True)
    known = {row["word"] for row in rows}
    free = [w for w, word in enumerate(corpus["words"]) if not covers[w] and word not in known]
    weights = [common[corpus["words"][w]] for w in free]
    chosen = sorted(set(draw.choices(free, weights, k=DRAWN)))
    photographed = set(corpus["photographed"])
    visible = [w for w in chosen if corpus["senses"][w][0][0] in photographed]
    return {
        "rows": rows,
        "nodes": nodes,
        "distractors": [ids["words"][w] for w in visible],
        "templates": [ids["standard"], *ids["plain"], ([], [])],
    }


def tree(
    corpus: dict[str, Any], members: dict[int, list[int]], rows: list[dict[str, Any]], row_of: dict[str, int]
) -> list[dict[str, Any]]:
    """The synsets above the classes: children, how many classes, and the nouns that name just this node."""
    order = sorted(members, key=lambda s: -len(members[s]))
    index = {s: i for i, s in enumerate(order)}
    children: dict[int, list[int]] = defaultdict(list)
    for s in order:
        for parent in corpus["synsets"]["parents"][s]:
            children[parent].append(index[s])
    own = {s: c for c, s in enumerate(corpus["wnids"])}
    nodes = []
    for s in order:
        names = [own[s]] if s in own else []
        for word in corpus["synsets"]["words"][s]:
            for text in (word.lower(), plural(word.lower())):
                if text in row_of and row_of[text] not in names:
                    cover = dict(rows[row_of[text]]["cover"])
                    inside = sum(cover.get(c, 0.0) for c in members[s])
                    if inside >= NAMES_NODE * max(sum(cover.values()), len(members[s])):
                        names.append(row_of[text])
        nodes.append({"children": children[s], "size": len(members[s]), "rows": names})
    return nodes


def load(cache: Path, corpus: dict[str, Any]) -> dict[str, Any]:
    """The nouns, built once and then read from the cache."""
    file = cache / "nouns.json.xz"
    if not file.exists():
        file.write_bytes(lzma.compress(json.dumps(build(corpus), separators=(",", ":")).encode()))
    return json.loads(lzma.decompress(file.read_bytes()))
