"""Atomic writes, hashes, file names, and text that is printed."""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import category

from poise.errors import StorageError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = ".writing-"  # prefix of files that a killed process may leave behind
_STORAGE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENOTDIR,
    errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO,
}  # fmt: skip


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert errors of the operating system when writing to ``path`` into `StorageError`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        if error.errno not in _STORAGE_ERRORS:
            raise
        raise StorageError(
            f"Can't write '{path}': {error.strerror}.",
            hint="Finished results are kept. Free some space or fix the permissions, then run the same command again.",
        ) from error


def write_atomic(path: str | Path, content: bytes) -> None:
    """Write a file that is either complete or absent, even after a power failure.

    A link keeps its place, and the file that it leads to is written. What is not a file, such as ``/dev/stdout``, is
    written to directly: replacing it would remove the device.
    """
    path = Path(path)
    with storage_errors(path):
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def save_tensors(path: str | Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write named tensors as a safetensors file."""
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, save(plain, metadata=dict(metadata)))


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118  not a dict


def read_bounded(path: str | Path, limit: int) -> bytes:
    """Return the content of a file; an OSError if it has more than ``limit`` bytes, as a device that never ends has."""
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
    return content


def checksum(content: bytes) -> str:
    """Return the SHA-256 hash in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def hash_names(names: Iterable[str]) -> str:
    """Return a short hash of class names in label order.

    >>> hash_names(["cat", "dog"]) == hash_names(["dog", "cat"])
    False
    """
    return hashlib.blake2b("\n".join(names).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def slug(text: str) -> str:
    """Return a readable file name for ``text``, with a short hash if characters had to be replaced."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")
    if safe == text:
        return safe
    mark = checksum(text.encode("utf-8", "surrogatepass"))[:6]
    return f"{safe[-60:].strip('-.')}-{mark}"


def as_utf8(name: str) -> str:
    r"""Return a name with escapes for bytes of a file name that are not UTF-8, which no file of records can contain.

    >>> as_utf8(b"caf\xe9.png".decode("utf-8", "surrogateescape"))
    'caf\\udce9.png'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    r"""Escape control and format characters, which could move the cursor, change colours or reverse the text.

    >>> printable("cat\x1b[31m \u202egod")
    'cat\\x1b[31m \\u202egod'
    """
    return "".join(_escaped(character) if category(character) in ("Cc", "Cf") else character for character in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode() if ord(character) > 0xFF else f"\\x{ord(character):02x}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless there is one.

    >>> counted(1, "image"), counted(0, "image"), counted(2, "class")
    ('1 image', '0 images', '2 classes')
    """
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{plural * (number != 1)}"


def safe_cell(value: object) -> object:
    """Prepend an apostrophe to text that a spreadsheet would evaluate as a formula.

    >>> safe_cell("=1+1"), safe_cell(-1.5), safe_cell("kld+cats")
    ("'=1+1", -1.5, 'kld+cats')
    """
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")):
        return f"'{value}"
    return value


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
