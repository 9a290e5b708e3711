"""Webdataset shards read by offset: ``wds:/path/{000..012}.tar``, or a folder in CLIP_benchmark's layout.

A sample is ``key.jpg`` (or another image) and ``key.cls`` (its label). Shards are indexed with the standard library;
nothing is ever unpacked, so a member's name can't lead anywhere.
"""

from __future__ import annotations

import glob
import itertools
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from poise.data.edits import tidy
from poise.data.items import ImageSet, Item, Slice
from poise.errors import InvalidDatasetError

SUFFIXES = frozenset(("jpg", "jpeg", "png", "webp"))


def expand_braces(pattern: str) -> list[str]:
    """All names that ``{000..012}`` and ``{a,b}`` stand for.

    >>> expand_braces("x-{08..10}.tar")
    ['x-08.tar', 'x-09.tar', 'x-10.tar']
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(piece, pattern) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    return ["".join(parts) for parts in itertools.product(*choices)]


def _choices(inside: str, pattern: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)", inside)
    if span is None:
        return inside.split(",")
    first, last = span.groups()
    if int(last) < int(first) or int(last) - int(first) >= 1_000_000:
        raise InvalidDatasetError(
            f"The range {{{inside}}} in '{pattern}' is empty or too long.", hint="Write {first..last}."
        )
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def find_shards(pattern: str) -> list[Path]:
    """The shard files that ``pattern`` names: braces, a glob, or a folder in CLIP_benchmark's layout."""
    folder = Path(pattern).expanduser()
    if folder.is_dir():
        inner = folder / "test" if (folder / "test").is_dir() else folder
        count = inner / "nshards.txt"
        if count.is_file():
            shards = [inner / f"{number}.tar" for number in range(int(count.read_text(encoding="utf-8").strip() or 0))]
        else:
            shards = sorted(inner.glob("*.tar"))
    elif "*" in pattern:
        shards = [Path(name) for name in sorted(glob.glob(str(folder)))]
    else:
        shards = [Path(name).expanduser() for name in expand_braces(pattern)]
    missing = [shard for shard in shards if not shard.is_file()]
    if missing or not shards:
        what = (
            f"{len(missing)} of {len(shards)} shards are missing, e.g. '{missing[0]}'" if missing else "there are none"
        )
        raise InvalidDatasetError(
            f"Shards 'wds:{pattern}': {what}.", hint="Give wds:/path/{000..012}.tar or a folder of shards."
        )
    return shards


def read_samples(shard: Path) -> Iterator[tuple[str, int, Slice]]:
    """Key, label and place of every image of a shard, in its order."""
    images: dict[str, Slice] = {}
    labels: dict[str, int] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                key, _, kind = member.name.rpartition(".")
                if not member.isreg() or not key:
                    continue
                place = Slice(str(shard), member.offset_data, member.size)
                if kind.lower() in SUFFIXES:
                    images[key] = place
                elif kind == "cls":
                    labels[key] = _label(place, key)
    except (tarfile.TarError, OSError) as problem:
        raise InvalidDatasetError(
            f"The shard '{shard}' can't be read: {problem}.", hint="Shards are uncompressed .tar files."
        ) from problem
    bare = sorted(images.keys() ^ labels.keys())
    if bare:
        raise InvalidDatasetError(
            f"The shard '{shard}' has {len(bare)} samples without an image or without a label, e.g. '{bare[0]}'.",
            hint="A sample is key.jpg (or .png, .webp) and key.cls.",
        )
    yield from ((key, labels[key], place) for key, place in images.items())


def _label(place: Slice, key: str) -> int:
    text = place.load().strip() if place.size <= 32 else b""
    if not text.isdigit():
        raise InvalidDatasetError(
            f"'{key}.cls' in '{place.path}' is not a label: {text[:20]!r}.", hint="A label is a whole number."
        )
    return int(text)


def open_shards(pattern: str) -> ImageSet:
    """All samples of the shards; class names are in ``classnames.txt`` beside the shards or one folder up."""
    shards = find_shards(pattern)
    folder = shards[0].parent
    class_file = next(
        (place / "classnames.txt" for place in (folder, folder.parent) if (place / "classnames.txt").is_file()), None
    )
    if class_file is None:
        raise InvalidDatasetError(
            f"Shards 'wds:{pattern}' have no classnames.txt.", hint=f"Put it into '{folder}', a name per line."
        )
    classes = tuple(tidy(line) for line in class_file.read_text(encoding="utf-8").splitlines() if line.strip())
    items = [
        Item(id=f"{shard.stem}/{key}", label=label, read=place)
        for shard in shards
        for key, label, place in read_samples(shard)
    ]
    beyond = next((item for item in items if item.label >= len(classes)), None)
    if beyond is not None or not items:
        what = f"'{beyond.id}' has label {beyond.label}" if beyond else "there is no sample"
        raise InvalidDatasetError(f"Shards 'wds:{pattern}': {what}, and '{class_file}' has {len(classes)} classes.")
    return ImageSet(name=f"wds:{pattern}", classes=classes, items=tuple(items), folder=str(folder), layout="webdataset")
