"""Turns a few random bytes into an edited copy of a valid input. The same bytes always give the same input."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from typing import Any

_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63, 2**64 - 1)
_WORDS = (
    b"\0",
    b"\n",
    b"\r",
    b"\xff",
    b'"',
    b"{",
    b"}" * 3,
    b"[" * 2000,
    b",",
    b"NaN",
    b"1e999",
    b"-1",
    b"../../x",
    b"\xed\xa0\x80",
    b"null",
    b"true",
    b"=",
    b"#",
    b"'''",
    b"9" * 400,
    b"\xef\xbb\xbf",
    b"%s",
    b"\x1b[31m",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3.5,
    -0.0,
    1e308,
    math.nan,
    math.inf,
    10**6,
    2**31,
    2**63,
    2**64,
    10**30,
    "",
    "x",
    "a" * 5000,
    "../../etc/passwd",
    "/dev/zero",
    "\0",
    "\ud800",
    "[red]",
    "<b>",
    "{}",
    "{}{}",
    "{0.__class__}",
    "auto",
    "1",
    "nan",
    [],
    [[]],
    [0],
    ["x"],
    [None],
    [1, 1],
    {},
    {"x": 1},
    {"": {}},
    [[[[[[[[0]]]]]]]],
    list(range(300)),
)


class Choices:
    """Reads decisions from bytes; when they are used up, every decision is 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def number(self, below: int) -> int:
        """Return a number from 0 to below - 1."""
        width = max(1, ((max(1, below) - 1).bit_length() + 7) // 8)
        part = self._data[self._at : self._at + width]
        self._at += width
        return int.from_bytes(part, "little") % max(1, below)

    def one(self, values: Sequence[Any]) -> Any:
        """Return one of the values."""
        return values[self.number(len(values))]

    def part(self, length: int) -> Choices:
        """Return the decisions of the next bytes, for one of several edits."""
        self._at += length
        return Choices(self._data[self._at - length : self._at])


def edited_bytes(choices: Choices, seeds: Sequence[bytes]) -> bytes:
    """Return one of the seeds after a few edits of its bytes."""
    content = bytearray(choices.one(seeds))
    while choices:
        kind, at = choices.number(8), choices.number(len(content) + 1)
        length = choices.one((1, 2, 4, 8, 16, 64, 300))
        if kind == 0 and content:
            content[at % len(content)] ^= 1 << choices.number(8)
        elif kind == 1:
            content[at : at + 1] = bytes([choices.number(256)])
        elif kind == 2:
            del content[at : at + length]
        elif kind == 3:
            content[at:at] = content[at : at + length] * choices.one((1, 2, 50))
        elif kind == 4:
            content[at:at] = choices.one(_WORDS)
        elif kind == 5:
            width = choices.one((1, 2, 4, 8))
            number = choices.one(_NUMBERS) % (1 << 8 * width)
            content[at : at + width] = number.to_bytes(width, choices.one(("little", "big")))
        elif kind == 6:
            other = choices.one(seeds)
            content[at:] = other[choices.number(len(other) + 1) :]
        else:
            del content[at:]
    return bytes(content)


def edited_tree(choices: Choices, tree: Any) -> Any:
    """Return a copy of nested dictionaries and lists in which values were replaced, renamed, removed or moved."""
    tree = copy.deepcopy(tree)
    while choices:
        places = list(_places(tree))
        if not places:
            return choices.one(VALUES)
        parent, key = choices.one(places)
        kind = choices.number(5)
        if kind == 0 and isinstance(parent, dict):
            del parent[key]
        elif kind == 1 and isinstance(parent, dict):
            parent[choices.one(("", "x", f"{key} ", str(key).upper(), "__class__", "a" * 300))] = parent.pop(key)
        elif kind == 2:
            other, name = choices.one(places)
            if (isinstance(other, dict) and name in other) or (isinstance(other, list) and name < len(other)):
                parent[key] = copy.deepcopy(other[name])
        elif kind == 3:
            for _ in range(choices.one((1, 3, 60))):
                parent[key] = [parent[key]] if choices.number(2) else {"x": parent[key]}
        else:
            parent[key] = copy.deepcopy(choices.one(VALUES))
    return tree


def _places(tree: Any) -> Any:
    """Yield all pairs of a container and a key of it."""
    stack = [tree]
    while stack:
        node = stack.pop()
        keys = list(node) if isinstance(node, dict) else range(min(len(node), 30)) if isinstance(node, list) else ()
        for key in keys:
            yield node, key
            stack.append(node[key])


def as_json(tree: Any) -> bytes:
    """Return JSON with all that Python's parser accepts: NaN, Infinity and half surrogates."""
    return json.dumps(tree).encode()


def edited_json(choices: Choices, tree: Any) -> bytes:
    """Return a tree as JSON, of which mostly values were edited, and sometimes bytes."""
    return as_json(edited_tree(choices, tree)) if choices.number(4) else edited_bytes(choices, [as_json(tree)])


def as_toml(tree: Any, prefix: str = "") -> str:
    """Return a table as TOML with dotted keys; what TOML has no value for is left out."""
    if not isinstance(tree, dict):
        return ""
    lines = []
    for key, value in tree.items():
        name = prefix + json.dumps(str(key))
        if isinstance(value, dict) and value:
            lines.append(as_toml(value, f"{name}."))
        elif value is not None:
            lines.append(f"{name} = {_toml_value(value)}")
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf"
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value if item is not None)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(key))} = {_toml_value(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
