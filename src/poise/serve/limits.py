"""The limits of a server. This module imports nothing heavy, so that `poise --help` can show them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from poise.errors import InvalidOptionError

MAX_CHARACTERS = 1000  # of a label or a template; far more than any model reads


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a server accepts; each limit has an error code of its own.

    Attributes:
        labels: labels of a request.
        views: views per image.
        methods: methods of a request.
        pixels: pixels of an image, known from its header before it is decoded.
        body: bytes of a request.
        images: images of a batch request.
        seconds: until a request must be answered.
        header_seconds: until a request's headers must have arrived; not applied on Ray.
        body_seconds: until a request's body must have arrived.
        held: bytes of all requests that are being read or answered.
        connections: open connections, and requests that are being read or answered.
        queue: cost (views x images x tuned methods) of all images that wait or run.
        label_sets: label sets and options that are kept in memory.
        cached_labels: labels of all of them together; each takes about 0.6 MB with the model pocket.
    """

    labels: int = 1000
    views: int = 64
    methods: int = 4
    pixels: int = 25_000_000
    body: int = 20_000_000
    images: int = 16
    seconds: float = 60.0
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    held: int = 256_000_000
    connections: int = 256
    queue: int = 8192
    label_sets: int = 32
    cached_labels: int = 2000

    def __post_init__(self) -> None:
        from poise.images.read import MAX_PIXELS

        for row in fields(self):
            if not getattr(self, row.name) > 0:
                raise InvalidOptionError(
                    f"The limit of {row.name} is {getattr(self, row.name)}.", hint="Use a number above 0."
                )
        if self.pixels > MAX_PIXELS:
            raise InvalidOptionError(
                f"The limit of pixels is {self.pixels:,}.", hint=f"poise reads images up to {MAX_PIXELS:,} pixels."
            )
        if self.body > self.held:
            raise InvalidOptionError(
                f"The limit of body is {self.body:,} bytes, and all requests together may have {self.held:,}.",
                hint=f"Use at most {self.held:,}.",
            )
