"""A stream of an image file that ends the decoding of files that were made to take hours."""

from __future__ import annotations

import time
from typing import Any, BinaryIO

from PIL import BmpImagePlugin, Image, JpegImagePlugin

MAX_SCANS = 100  # of a JPEG; progressive ones of cameras and web sites have about ten
_SECONDS = 2.0  # of processor time, for any image
_SECONDS_PER_PIXEL = 2e-7  # several times what the slowest format takes
_SCAN = b"\xff\xda"


class TooCostlyError(Exception):
    """A file that would take too much processor time."""


class BoundedStream:
    """Passes on what is read from a file, up to limits; `begin` sets those of the pixels after the header was read.

    Decoders ask for the file piece by piece, so that they can be stopped between two pieces. Time is that of this
    thread's processor, which other work on the machine does not use up.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._until = time.thread_time() + _SECONDS
        self._scans: int | None = None
        self._last = b""

    def begin(self, image: Image.Image) -> None:
        """Set the limits for decoding an image."""
        # Plain BMP files are read at once, and Pillow unpacks run lengths in Python: large ones would take seconds.
        per_pixel = 0.0 if isinstance(image, BmpImagePlugin.BmpImageFile) else _SECONDS_PER_PIXEL
        self._until = time.thread_time() + _SECONDS + per_pixel * image.width * image.height
        self._scans = 0 if isinstance(image, JpegImagePlugin.JpegImageFile) else None

    def read(self, size: int = -1) -> bytes:
        """Return bytes of the file.

        Raises:
            TooCostlyError: A limit is exceeded.
        """
        if time.thread_time() > self._until:
            raise TooCostlyError("it takes too much time to decode")
        piece = self._stream.read(size)
        if self._scans is not None:
            self._scans += (self._last + piece).count(_SCAN)
            self._last = piece[-1:]
            if self._scans > MAX_SCANS:
                raise TooCostlyError(f"it has more than {MAX_SCANS} scans")
        return piece

    def __getattr__(self, name: str) -> Any:
        if name == "fileno":  # libtiff would read the file itself
            raise AttributeError(name)
        return getattr(self._stream, name)
