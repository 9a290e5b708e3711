"""Text that is printed or becomes a file name: escapes, plurals, spreadsheet cells and safe names."""

from __future__ import annotations

import hashlib
import json
import re
import textwrap
from collections.abc import Sequence
from unicodedata import category


def file_name(text: str, *, unique: bool = True) -> str:
    """Return a readable file name for ``text``, with a short hash if characters had to be replaced.

    Args:
        text: any text.
        unique: two texts never have the same name; False: no hash, and "+" stays.

    >>> file_name("kld+cats"), file_name("kld+cats", unique=False), file_name("a/b c", unique=False)
    ('kld-cats-52ea3c', 'kld+cats', 'a-b-c')
    """
    if not unique:
        return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if safe == text:
        return safe
    mark = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{safe[-60:].strip('-.')}-{mark}"


def as_utf8(name: str) -> str:
    r"""Return a name with escapes for bytes of a file name that are not UTF-8, which no file of records can contain.

    >>> as_utf8(b"caf\xe9.png".decode("utf-8", "surrogateescape"))
    'caf\\udce9.png'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""Escape control and format characters, which could move the cursor, change colours or reverse the text.

    Escapes are those of JSON, so that printed JSON keeps its meaning.

    >>> printable("cat\x1b[31m \u202egod")
    'cat\\u001b[31m \\u202egod'
    """
    if text.isprintable():
        return text
    return "".join(_escaped(character) if category(character) in _CONTROL else character for character in text)


_CONTROL = ("Cc", "Cf", "Zl", "Zp")
_JOINERS = "\u200c\u200d"  # between letters of some scripts and parts of emoji; they change nothing else


def _escaped(character: str) -> str:
    if character in _JOINERS:
        return character
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def wrapped(text: str, width: int) -> str:
    r"""Break a line between words into lines of at most ``width`` characters, unless a single word is longer.

    >>> wrapped("poise: no confidence threshold", 22)
    'poise: no confidence\n  threshold'
    """
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def as_words(label: str) -> str:
    """Return a label as the model reads it: underscores are spaces.

    Labels that are the same words are the same label, wherever labels are compared: those of folders, of a calibration
    and of a classifier. Answers have a label as it was given.

    >>> as_words("american_bulldog")
    'american bulldog'
    """
    return label.replace("_", " ")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one.

    >>> counted(1, "image"), counted(0, "image"), counted(2, "class")
    ('1 image', '0 images', '2 classes')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural * (number != 1)}"


def first_few(names: Sequence[str], shown: int = 5, separator: str = ", ") -> str:
    """Join the first names and count the others.

    >>> first_few(["a", "b", "c"], 2), first_few(["a", "b"], 2)
    ('a, b and 1 more', 'a, b')
    """
    more = len(names) - shown
    return separator.join(names[:shown]) + (f" and {more} more" if more > 0 else "")


def safe_cell(value: object) -> object:
    """Escape text as `printable` does, and prepend an apostrophe to what a spreadsheet would evaluate as a formula.

    >>> safe_cell("=1+1"), safe_cell(-1.5), safe_cell("kld+cats")
    ("'=1+1", -1.5, 'kld+cats')
    """
    if not isinstance(value, str):
        return value
    value = printable(value)
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
