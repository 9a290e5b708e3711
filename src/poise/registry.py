"""A registry maps public names to things; a clash raises and a near miss is suggested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from poise.errors import InvalidOptionError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Names to things of one kind.

    >>> colours = Registry[int]("colour")
    >>> _ = colours.add("red")(0xFF0000)
    >>> colours.names()
    ['red']
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """A decorator that stores its argument under ``name`` and returns it unchanged."""
        if name in self._entries:
            raise InvalidOptionError(f"The {self.kind} '{name}' is registered already.", hint="Choose another name.")

        def store(entry: T) -> T:
            self._entries[name] = entry
            return entry

        return store

    def get(self, name: str) -> T:
        """The entry called ``name``, or an error with the nearest name."""
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError.of(self.kind, name, self._entries) from None

    def remove(self, name: str) -> None:
        """Forget the entry called ``name``: a notebook registers the next version of it, a test cleans up."""
        self.get(name)
        del self._entries[name]

    def names(self) -> list[str]:
        """All names, in the order in which they were added."""
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
