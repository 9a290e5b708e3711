"""Reads and checks lists of labels."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from poise.calibration.tree import ARROW
from poise.errors import InvalidLabelsError, reason_of
from poise.files import read_bounded
from poise.text import as_words, first_few

NONE_OF_THEM = (  # what to do with labelled images that show none of the labels; see docs/calibration.md
    "If an image shows none of the labels, add a label for such images (such as 'something else') to the list, and "
    "give it to them; leaving them out would make it another sample."
)
BAR = " | "  # between groups of labels; in a file, a line of its own
_NEGATION = re.compile(r"(no|not|without|non)[ -]+((an?|the|any) )?")
_MAX_BYTES = 16 << 20  # limit on a labels file, in case it is a device that never ends
_FEWEST = {1: "one label", 2: "two labels"}
_MAX_LISTED = 5  # labels listed in an error message
_MAX_LETTERS = 60  # letters of a label in an error message


def read_labels(path: str | Path) -> list[str]:
    """Read labels from a UTF-8 text file with one label per line; empty lines are ignored, and "|" is between groups.

    Of a CSV file (by its name), the column ``path`` is read: paths through a tree, such as "animal > cat > tabby cat".

    Raises:
        InvalidLabelsError: The file can't be read, is not UTF-8, is larger than 16 MiB, or has no column ``path``.
    """
    hint = "Give a text file with one label per line, in UTF-8."
    try:
        text = read_bounded(path, _MAX_BYTES).decode("utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, or a path with a null character
        raise InvalidLabelsError(f"Can't read labels from '{path}': {reason_of(error)}.", hint=hint) from None
    if str(path).lower().endswith(".csv"):
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if "path" not in (reader.fieldnames or ()):
            raise InvalidLabelsError(f"'{path}' has no column path.", hint="Its rows are such as: animal > cat > tabby")
        return [(row["path"] or "").strip() for row in reader]
    return [line.strip() for line in text.splitlines() if line.strip()]


def split_groups(written: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return labels without the bars between groups, and the number of each label's group: none if there is no bar.

    >>> split_groups(["cat", "dog", "|", "indoor", "outdoor"])
    (['cat', 'dog', 'indoor', 'outdoor'], ['1', '1', '2', '2'])
    """
    bar, group, labels, groups = BAR.strip(), 1, list[str](), list[str]()
    if bar not in written:
        return list(written), []
    for text in written:
        if text == bar:
            group += 1
        else:
            labels.append(text)
            groups.append(str(group))
    return labels, groups


def split_written(text: str) -> list[str]:
    """Return labels that are separated by commas, and "|" for the bars between groups.

    >>> split_written("cat, dog| indoor, outdoor")
    ['cat', 'dog', '|', 'indoor', 'outdoor']
    """
    parts = [[label.strip() for label in part.split(",")] for part in text.split(BAR.strip())]
    return [label for at, part in enumerate(parts) for label in ([BAR.strip()] if at else []) + part]


def write_labels(labels: Sequence[str], groups: Sequence[str] = (), parents: Sequence[str] = ()) -> str:
    """Return labels as people write them: with their paths through a tree, and with bars between groups.

    >>> write_labels(["cat", "dog", "indoor"], groups=["1", "1", "2"])
    'cat, dog | indoor'
    """
    if not groups:
        return ", ".join(parents or labels)
    parts = {name: [x for x, y in zip(labels, groups, strict=True) if y == name] for name in groups}
    return BAR.join(", ".join(part) for part in parts.values())


def split_paths(written: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return labels as people write them, and their paths through a tree: none if no label is written as a path.

    >>> split_paths(["cat > tabby", "cat > siamese", "car"])
    (['tabby', 'siamese', 'car'], ['cat > tabby', 'cat > siamese', 'car'])
    >>> split_paths(["tabby", "car"])
    (['tabby', 'car'], [])
    """
    labels = [text.rsplit(ARROW, 1)[-1].strip() for text in written]
    return labels, [*written] if any(ARROW in text for text in written) else []


def check_labels(labels: Sequence[str], *, repeats: bool = False, fewest: int = 1) -> tuple[str, ...]:
    """Return the labels as a tuple, or raise an error that lists invalid ones.

    Args:
        labels: the labels.
        repeats: whether a label may occur twice.
        fewest: the number of labels that are needed.
    """
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        raise InvalidLabelsError(
            f"Labels must be a list of strings, got {type(labels).__name__}.", hint="Pass ['cat', 'dog']."
        )
    if not labels:
        raise InvalidLabelsError("The list of labels is empty.", hint=f"Give at least {_FEWEST[fewest]}.")
    wrong = [f"{i}: {label!r} ({type(label).__name__})" for i, label in enumerate(labels) if not isinstance(label, str)]
    if wrong:
        raise InvalidLabelsError(f"Labels must be strings; not so at index {listed(wrong)}.", hint="Use str().")
    blank = [str(i) for i, label in enumerate(labels) if not as_words(label).strip()]
    if blank:
        raise InvalidLabelsError(f"Blank labels at index {listed(blank)}.", hint="Remove them or give them a name.")
    indices: dict[str, list[str]] = defaultdict(list)
    for i, label in enumerate(labels):
        indices[as_words(label)].append(str(i))
    repeated = [f"{label!r} at indices {', '.join(group)}" for label, group in indices.items() if len(group) > 1]
    if repeated and not repeats:
        raise InvalidLabelsError(f"Duplicate labels: {listed(repeated)}.", hint="Give each label once.")
    if len(labels) < fewest:
        raise InvalidLabelsError(
            f"{shortened(labels[0])} is the only label, and its probability would be 1 for any image.",
            hint=f"Give at least {_FEWEST[fewest]}, such as 'cat' and 'other animal'"
            + (": each by itself, not in one text with commas." if "," in labels[0] else "."),
        )
    return tuple(labels)


def check_negations(labels: Sequence[str]) -> None:
    """Raise an error if a label is the negation of another one: models read "no dog" as "dog".

    >>> check_negations(["dog", "no entry sign"])
    """
    known = {as_words(label).casefold(): label for label in labels}
    if wrong := [label for name, label in known.items() if (no := _NEGATION.match(name)) and name[no.end() :] in known]:
        raise InvalidLabelsError(
            f"Labels are negations of others: {listed([shortened(label) for label in wrong])}.",
            hint="Models read 'no dog' as 'dog'. Give 'dog' alone, as an independent label: it gets a low probability "
            "where it does not apply.",
        )


def shortened(label: str) -> str:
    """Return the label in quotes for an error message, shortened if it is long."""
    return repr(label if len(label) <= _MAX_LETTERS else f"{label[: _MAX_LETTERS - 3]}...")


def suggested(label: str, known: Sequence[str]) -> str:
    """Return an unknown label in quotes, and the known one that it is most similar to, if any.

    >>> suggested("wristwatch", ["camera", "wrist watch"]), suggested("Camera", ["camera"]), suggested("x", ["camera"])
    ("'wristwatch' (did you mean 'wrist watch'?)", "'Camera' (did you mean 'camera'?)", "'x'")
    """
    folded = {as_words(name).casefold(): name for name in known}
    near = difflib.get_close_matches(as_words(label).casefold(), list(folded), n=1, cutoff=0.75)
    return f"{shortened(label)} (did you mean {shortened(folded[near[0]])}?)" if near else shortened(label)


def listed(items: Sequence[str]) -> str:
    """Join the first items for an error message and count the others."""
    return first_few(items, _MAX_LISTED, "; ")
