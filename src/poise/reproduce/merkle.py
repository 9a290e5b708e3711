"""Merkle trees: one hash of many entries, and short proofs that some entries are among them.

A leaf and an inner node are hashed differently, so that none can be taken for the other; a node without a neighbour
moves up unchanged.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence

_BYTES = 20  # of a hash: 160 bits


def root(leaves: Sequence[bytes]) -> str:
    """Return the root of a tree of entries, in hexadecimal.

    >>> root([b"a", b"b"]) != root([b"b", b"a"])
    True
    """
    return _counted(len(leaves), _levels(leaves)[-1][0] if leaves else b"")


def prove(leaves: Sequence[bytes], positions: Sequence[int]) -> list[str]:
    """Return what is needed, besides the entries at ``positions``, to compute the root: their unknown neighbours."""
    proof, known = [], set(positions)
    for level in _levels(leaves)[:-1] if leaves else []:
        for at in sorted(known):
            other = at ^ 1
            if other < len(level) and other not in known:
                proof.append(base64.b85encode(level[other]).decode())
        known = {at // 2 for at in known}
    return proof


def proven(expected: str, count: int, entries: Mapping[int, bytes], proof: Sequence[str]) -> bool:
    """Return whether ``entries``, by position, are among the ``count`` entries of the tree with this root."""
    if not entries or not all(0 <= at < count for at in entries):
        return False
    try:
        decoded = [base64.b85decode(text) for text in proof]
    except (ValueError, TypeError):
        return False
    if [base64.b85encode(each).decode() for each in decoded] != list(proof):  # padding is not a second form
        return False
    hashes = iter(decoded)
    level, size = {at: _hash(b"\0", leaf) for at, leaf in entries.items()}, count
    while size > 1:
        above: dict[int, bytes] = {}
        for at in sorted(level):
            if at // 2 in above:
                continue
            other = at ^ 1
            if other >= size:
                above[at // 2] = level[at]
                continue
            neighbour = level[other] if other in level else next(hashes, b"")
            above[at // 2] = _hash(b"\1", *((level[at], neighbour) if at % 2 == 0 else (neighbour, level[at])))
        level, size = above, (size + 1) // 2
    return _counted(count, level[0]) == expected and next(hashes, None) is None


def _counted(count: int, top: bytes) -> str:
    """Return the root, which the number of entries is a part of."""
    return _hash(b"\2", str(count).encode() + b" ", top).hex()


def _levels(leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [[_hash(b"\0", leaf) for leaf in leaves]]
    while len(levels[-1]) > 1:
        level = levels[-1]
        levels.append(
            [_hash(b"\1", *level[at : at + 2]) if at + 1 < len(level) else level[at] for at in range(0, len(level), 2)]
        )
    return levels


def _hash(kind: bytes, *parts: bytes) -> bytes:
    state = hashlib.blake2b(kind, digest_size=_BYTES)
    for part in parts:
        state.update(part)
    return state.digest()
