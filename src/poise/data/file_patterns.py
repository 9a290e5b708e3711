"""Files that a pattern describes: braces, a glob or a folder, on this machine or on a remote filesystem."""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
from fnmatch import fnmatchcase

from poise.errors import InvalidDatasetError
from poise.filesystems import is_remote, join, list_files

MAX_FILES = 100_000


def expand_braces(pattern: str) -> list[str]:
    """Return all names that a pattern with ``{000..012}`` or ``{a,b}`` describes.

    >>> expand_braces("x-{08..10}.tar")
    ['x-08.tar', 'x-09.tar', 'x-10.tar']
    """
    pieces = re.split(r"\{([^{}]*)\}", pattern)
    choices = [_choices(piece, pattern) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    if math.prod(map(len, choices)) > MAX_FILES:
        raise InvalidDatasetError(
            f"'{pattern[:200]}' describes more than {MAX_FILES:,} names.", hint="Use fewer braces or shorter ranges."
        )
    return ["".join(parts) for parts in itertools.product(*choices)]


def _choices(inside: str, pattern: str) -> list[str]:
    span = re.fullmatch(r"(\d+)\.\.(\d+)", inside, re.ASCII)
    if span is None:
        return inside.split(",")
    first, last = span.groups()
    if len(inside) > 20 or not 0 <= int(last) - int(first) < MAX_FILES:
        raise InvalidDatasetError(
            f"The range {{{inside[:40]}}} in '{pattern[:200]}' is empty or too long.", hint="Write {first..last}."
        )
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def find_files(pattern: str, suffix: str, scheme: str) -> list[str]:
    """Return the files of a pattern with braces, of a glob, or with ``suffix`` in a folder.

    That remote files exist is not checked here, unless they are listed: each would be a request.
    """
    if is_remote(pattern):
        return check_files(find_remote(pattern, (suffix,)), f"{scheme}:{pattern}")
    path = os.path.expanduser(pattern)
    if os.path.isdir(path):
        return check_files(sorted(glob.glob(join(glob.escape(path), f"*{suffix}"))), f"{scheme}:{pattern}")
    return check_files(sorted(glob.glob(path)) if "*" in path else expand_braces(path), f"{scheme}:{pattern}")


def find_remote(pattern: str, suffixes: tuple[str, ...], *, below: bool = False) -> list[str]:
    """Return the addresses of a pattern with braces, of a glob, or with one of the suffixes in a remote folder.

    Args:
        pattern: an address.
        suffixes: in lower case.
        below: also search the folders in a folder, without hidden ones.
    """
    address, mark, options = pattern.partition("?")
    folder, _, name = address.rpartition("/")
    if "*" in folder:
        raise InvalidDatasetError(
            f"'{pattern[:200]}' has a * in the name of a folder.", hint="Give the folder, or a list:FILE of addresses."
        )
    if "*" in name:
        place = f"{folder}{mark}{options}"
        return [join(place, file) for file in list_files(place) if fnmatchcase(file, name)]
    if name.lower().endswith(suffixes) or "{" in name:
        return expand_braces(pattern)
    found = (file for file in list_files(pattern, below=below) if file.lower().endswith(suffixes))
    return [join(pattern, file) for file in found if not f"/{file}".count("/.")]


def check_files(files: list[str], pattern: str) -> list[str]:
    """Return the files; raise an error if there are none, or if local ones are missing."""
    missing = [file for file in files if not is_remote(file) and not os.path.isfile(file)]
    if missing or not files:
        example = f"{len(missing)} of {len(files)} shards are missing, e.g. '{missing[0]}'" if missing else ""
        scheme = pattern.partition(":")[0]
        raise InvalidDatasetError(
            f"Shards '{pattern}': {example or 'there are none'}.",
            hint=f"Use {scheme}:/path/{{000..012}}.{'tar' if scheme == 'wds' else scheme} or a folder of shards.",
        )
    return files
