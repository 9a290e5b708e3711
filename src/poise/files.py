"""Atomic writes, bounded reads, tensors as safetensors files, and hashes of content."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from poise.errors import RunConflictError, StorageError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY = ".writing-"  # prefix of files that a killed process may leave behind
_STORAGE_ERRORS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EFBIG,
    errno.EIO,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.ENXIO,
}


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
    written to directly: replacing it would remove the device. Of several writers, the last one's file stays.
    """
    path = Path(path)
    with storage_errors(path):
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            with temporary.open("xb") as file:  # a new file: nothing that is there, such as a link, is written to
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep other processes that ask for it from writing a file that is written line by line; it is created if absent.

    Raises:
        RunConflictError: Another process writes it.
        StorageError: It can't be written.
    """
    if path.exists() and not path.is_file():  # a device or a pipe, which many may write to
        yield
        return
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "Wait for it, or give another file."
            raise RunConflictError(f"Another process is writing '{path}'.", hint=hint) from None
        yield


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


def read_bounded(path: str | Path, limit: int = 64 << 20) -> bytes:
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


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
