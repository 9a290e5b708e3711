"""Everything that is read, as token ids: WordNet's nouns, CLIP's names for ImageNet's classes, CLIP's word pieces."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

from templates import ADJECTIVES, JOINTS, LOOKS, PLAIN, SECOND, STANDARD
from wordnet import Synset, read_senses, read_synsets

PIECE_TOKENS = 26  # a name, a word or a definition is cut to this many tokens


def class_names(file: Path) -> tuple[list[str], list[str]]:
    """(wnids, names) of the 1000 classes, in label order."""
    rows = [line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [wnid for wnid, _ in rows], [name.strip() for _, name in rows]


def photographed_synsets() -> list[str]:
    """The wnids of the 21k nouns for which ImageNet holds images, from timm's own lists."""
    import timm

    file = Path(str(timm.__file__)).parent / "data" / "_info" / "imagenet_synset_to_lemma.txt"
    return [line.split("\t")[0] for line in file.read_text(encoding="utf-8").splitlines()]


def plural(word: str) -> str:
    """The regular English plural."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def definition(synset: Synset) -> str:
    """A synset's first word and the first part of its gloss, the text that carries most of its meaning."""
    return f"{synset.words[0]}: {synset.gloss.split(';')[0].strip()}"


def wordnet_part(folder: Path) -> tuple[list[str], dict[str, Any], dict[str, list[tuple[int, int]]]]:
    """All nouns: keys, the rows of the corpus, word -> [(synset row, count in tagged text)]."""
    synsets = read_synsets(folder)
    keys = list(synsets)
    row = {k: i for i, k in enumerate(keys)}
    senses = {word: [(row[k], count) for k, count in found if k in row] for word, found in read_senses(folder).items()}
    columns = {
        "words": [list(synsets[k].words) for k in keys],
        "gloss": [definition(synsets[k]) for k in keys],
        "parents": [[row[p] for p in synsets[k].parents if p in row] for k in keys],
    }
    return keys, columns, {word: found for word, found in senses.items() if found}


def build(wordnet: Path, names_file: Path) -> dict[str, Any]:
    """The corpus as plain lists, ready for JSON."""
    from open_clip.tokenizer import SimpleTokenizer

    tokenizer = SimpleTokenizer()
    wnids, names = class_names(names_file)
    keys, columns, senses = wordnet_part(wordnet)
    row = {k: i for i, k in enumerate(keys)}
    words = sorted(w for w in senses if len(w) > 1 and not w[0].isdigit())
    plurals = [(plural(w), w) for w in words if max(c for _, c in senses[w]) > 0 and plural(w) not in senses]
    pieces = sorted(
        {
            t[:-4]
            for t in tokenizer.encoder
            if t.endswith("</w>") and len(t) > 6 and t[:-4].isascii() and t[:-4].isalpha()
        }
    )
    pieces = [p for p in pieces if p not in senses]

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text)[:PIECE_TOKENS]

    def around(template: str) -> tuple[list[int], list[int]]:
        before, after = template.split("{}")
        return ids(before), ids(after)

    looks = [(look, t) for look, many in LOOKS.items() for t in many]
    return {
        "wnids": [row[w] for w in wnids],
        "names": names,
        "synsets": columns,
        "photographed": [row[k] for k in photographed_synsets() if k in row],
        "physical": row["n00001930"],
        "words": words,
        "senses": [senses[w] for w in words],
        "plurals": [p for p, _ in plurals],
        "singulars": [w for _, w in plurals],
        "pieces": pieces,
        "vocabulary": [tokenizer.decode([i]).strip() for i in range(len(tokenizer.encoder))],
        "ids": {
            "names": [ids(n) for n in names],
            "words": [ids(w) for w in words],
            "plurals": [ids(p) for p, _ in plurals],
            "pieces": [ids(p) for p in pieces],
            "gloss": [ids(g) for g in columns["gloss"]],
            "adjectives": [ids(a) for a in ADJECTIVES],
            "second": [ids(s) for s in SECOND],
            "joints": [ids(j) for j in JOINTS],
            "standard": around(STANDARD),
            "plain": [around(t) for t in PLAIN],
            "looks": [(look, *around(t)) for look, t in looks],
        },
    }


def load(cache: Path, wordnet: Path, names_file: Path) -> dict[str, Any]:
    """The corpus, built once and then read from the cache."""
    file = cache / "corpus.json.xz"
    if not file.exists():
        text = json.dumps(build(wordnet, names_file), separators=(",", ":"))
        file.write_bytes(lzma.compress(text.encode()))
    return json.loads(lzma.decompress(file.read_bytes()))
