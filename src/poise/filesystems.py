"""Files by their address: a local path, or an object of any filesystem that pyarrow or fsspec opens.

``s3://`` and ``gs://`` are pyarrow's; ``hf://``, ``https://`` and all others are fsspec's. A read that fails
is tried again from where it stopped, a bounded number of times. Nothing is contacted unless an address names it.
"""

from __future__ import annotations

import errno
import io
import os
import re
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from poise.errors import InvalidOptionError, StorageError, UnreachableError, reason_of
from poise.files import read_bounded, write_atomic

Z = TypeVar("Z")
ATTEMPTS = 5  # at a request of a remote filesystem
PAUSE = 0.2  # seconds before the second attempt; twice as long before each later one
BLOCK = 4 << 20  # bytes of one request
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_OF_PYARROW = ("s3", "gs")
_HOPELESS = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "INVALID_ACCESS_KEY")  # in messages of pyarrow
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)


def is_remote(address: str | Path) -> bool:
    """Return whether an address names a filesystem, rather than a local path.

    >>> is_remote("s3://bucket/a.tar"), is_remote("/data/a.tar"), is_remote("C:/a.tar")
    (True, False, False)
    """
    return bool(_SCHEME.match(str(address)))


def join(folder: str, *names: str) -> str:
    """Return the address of a file in a folder.

    >>> join("s3://bucket/run/?region=x", "part.parquet"), join("run", "a", "b")
    ('s3://bucket/run/part.parquet?region=x', 'run/a/b')
    """
    path, mark, options = folder.partition("?") if is_remote(folder) else (folder, "", "")
    return "/".join([path.rstrip("/"), *names]) + mark + options


def name_of(address: str) -> str:
    """Return the last part of an address.

    >>> name_of("s3://bucket/run/part.parquet?endpoint_override=x"), name_of("a/b.tar")
    ('part.parquet', 'b.tar')
    """
    path = address.partition("?")[0] if is_remote(address) else address
    return path.rstrip("/").rpartition("/")[2]


def folder_of(address: str) -> str:
    """Return the folder of a file.

    >>> folder_of("s3://bucket/run/part.parquet?region=x"), folder_of("a/b.tar"), folder_of("b.tar")
    ('s3://bucket/run?region=x', 'a', '.')
    """
    path, mark, options = address.partition("?") if is_remote(address) else (address, "", "")
    folder, slash, _ = path.rpartition("/")
    return f"{folder or slash or '.'}{mark}{options}"


def open_input(address: str) -> BinaryIO:
    """Open a file for reading at any position.

    Raises:
        OSError: It does not exist, or can't be read; the next bytes of a remote file raise it after `ATTEMPTS`.
    """
    if not is_remote(address):
        return open(address, "rb")
    return io.BufferedReader(_Remote(address), BLOCK)


def read_whole(address: str, limit: int = 64 << 20) -> bytes:
    """Return the content of a file; an OSError if it has more than ``limit`` bytes."""
    if not is_remote(address):
        return read_bounded(address, limit)
    with open_input(address) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MiB")
    return content


def write_whole(address: str, content: bytes) -> None:
    """Write a file that is either complete or absent.

    Raises:
        StorageError: It can't be written.
    """
    if not is_remote(address):
        write_atomic(address, content)
        return
    system, path = _resolve(address)

    def write() -> None:
        with system.open_output_stream(path) as stream:  # an object appears when the stream is closed
            stream.write(content)

    try:
        _retried(write)
    except OSError as error:
        raise StorageError(
            f"Can't write '{address}': {reason_of(error)}.",
            hint="Finished parts are kept. Check the bucket and its permissions, then run the command with --resume.",
        ) from error


def size_of(address: str) -> int | None:
    """Return the size of a file in bytes; None if it does not exist, or its server does not say."""
    if not is_remote(address):
        return os.path.getsize(address) if os.path.isfile(address) else None
    system, path = _resolve(address)
    size: int | None = _retried(lambda: system.get_file_info(path)).size
    return size


def list_files(folder: str, *, below: bool = False) -> dict[str, int]:
    """Return the files in a folder with their sizes, by name and in order; none if the folder does not exist.

    Args:
        folder: its address.
        below: also those of the folders in a remote folder, by their paths in it.
    """
    if not is_remote(folder):
        if not os.path.isdir(folder):
            return {}
        entries = sorted((entry for entry in os.scandir(folder) if entry.is_file()), key=lambda entry: entry.name)
        return {entry.name: entry.stat().st_size for entry in entries}
    from pyarrow.fs import FileSelector

    system, path = _resolve(folder)
    found = _retried(lambda: system.get_file_info(FileSelector(path, allow_not_found=True, recursive=below)))
    start = f"{path.strip('/')}/"  # some filesystems answer with a slash in front
    sizes = {info.path.strip("/").removeprefix(start): info.size or 0 for info in found if info.is_file}
    return dict(sorted(sizes.items()))


class _Remote(io.RawIOBase):
    """A remote file that is read in requests of their own, so that a broken one is repeated where it stopped."""

    def __init__(self, address: str) -> None:
        self._system, self._path = _resolve(address)
        self._file: Any = None
        self._at = 0
        self._size = _retried(lambda: self._opened().size())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        content = _retried(lambda: self._read(wanted))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def _read(self, wanted: int) -> bytes:
        try:
            file = self._opened()
            file.seek(self._at)
            content: bytes = file.read(wanted)
            if not content:
                raise OSError("the connection ended early")
            return content
        except BaseException:
            self._file = None  # the next attempt begins with a new connection
            raise

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._system.open_input_file(self._path)
        return self._file


def _retried(work: Callable[[], Z]) -> Z:
    """Return ``work()``, tried again after a pause if a request fails for a reason that may pass."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except _FINAL:
            raise
        except Exception as error:  # each filesystem has errors of its own
            if attempt == ATTEMPTS or any(word in str(error) for word in _HOPELESS):
                hint = "Run the command again with --resume when the server answers."
                raise UnreachableError(f"{reason_of(error)} (attempt {attempt}).", hint=hint) from error
            time.sleep(PAUSE * 2 ** (attempt - 1))
    raise AssertionError("the last attempt returns or raises")


def _resolve(address: str) -> tuple[Any, str]:
    """Return the filesystem of an address, and the path in it."""
    scheme, _, rest = address.partition("://")
    path, _, options = rest.partition("?")
    try:
        if scheme in _OF_PYARROW:
            return _of_pyarrow(f"{scheme}://{path.partition('/')[0]}/", options), path.rstrip("/")
        return _of_fsspec(scheme), address if scheme in ("http", "https") else rest.rstrip("/")
    except OSError as error:  # such as a bucket whose region can't be found
        raise UnreachableError(
            f"'{address}' can't be opened: {reason_of(error)}.",
            hint="Check the name, the credentials and, for S3, AWS_REGION and AWS_ENDPOINT_URL.",
        ) from error
    except (ValueError, ImportError, NotImplementedError) as error:
        raise InvalidOptionError(
            f"'{address}' can't be opened: {reason_of(error)}.",
            hint="Addresses are s3://, gs://, hf://, https:// or another scheme of fsspec, or local paths.",
        ) from error


@lru_cache(maxsize=64)  # finding the region of a bucket is a request
def _of_pyarrow(bucket: str, options: str) -> Any:
    from pyarrow.fs import FileSystem

    known = dict(parse_qsl(options))
    if bucket.startswith("s3://"):  # what the tools of S3 take from the environment, and pyarrow only in part
        endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL", ""))
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        found = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme, "region": region}
        known = {**{name: value for name, value in found.items() if value}, **known}
    return FileSystem.from_uri(f"{bucket}?{urlencode(known)}" if known else bucket)[0]


@lru_cache(maxsize=16)
def _of_fsspec(scheme: str) -> Any:
    import fsspec  # which huggingface_hub brings
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    return PyFileSystem(FSSpecHandler(fsspec.filesystem(scheme)))
