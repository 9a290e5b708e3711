"""The limits of a server. This module imports nothing heavy, so that `poise --help` can show them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from poise.errors import InvalidOptionError
from poise.options import option

_SERVE, _BOTH = ("serve",), ("serve", "demo")  # commands that can set a limit, as --max-NAME
MAX_CHARACTERS = 1000  # of a label or a template; far more than any model reads


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that a server accepts; each limit has an error code of its own."""

    labels: int = option(1000, "Most labels of a request.", commands=_SERVE)
    views: int = option(64, "Most views per image.", commands=_SERVE)
    methods: int = option(4, "Most methods of a request.", commands=_SERVE)
    pixels: int = option(25_000_000, "Most pixels of an image.", commands=_BOTH)  #: known from its header
    body: int = option(20_000_000, "Most bytes of a request.", commands=_BOTH)
    images: int = option(16, "Most images of a batch request.", commands=_SERVE)
    seconds: float = option(60.0, "Longest time until an answer.", commands=_SERVE)
    header_seconds: float = 10.0  #: until a request's headers must have arrived; not applied on Ray
    body_seconds: float = 30.0  #: until a request's body must have arrived
    held: int = 256_000_000  #: bytes of all requests that are being read or answered
    connections: int = option(256, "Most open connections; beyond it, 503.", commands=_SERVE)
    per_client: int = option(
        64,
        "Most requests of one address at a time; beyond it, 429. Clients of a proxy have its address.",
        commands=_SERVE,
    )
    queue: int = option(8192, "Most images x views x tuned methods that wait or run; beyond it, 429.", commands=_SERVE)
    label_sets: int = 32  #: label sets and options that are kept in memory
    cached_labels: int = 2000  #: labels of all of them together; each takes about 0.6 MB with the model pocket

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
