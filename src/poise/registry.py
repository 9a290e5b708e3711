"""A registry of named objects, and the check of options that rows take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from poise.errors import InvalidOptionError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind; duplicate and unknown names raise errors.

    >>> colours = Registry[int]("colour")
    >>> _ = colours.add("red")(0xFF0000)
    >>> colours.names()
    ['red']
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument under ``name``."""
        if name in self._entries:
            raise InvalidOptionError(f"The {self.kind} '{name}' is registered already.", hint="Choose another name.")

        def store(entry: T) -> T:
            self._entries[name] = entry
            return entry

        return store

    def get(self, name: str) -> T:
        """Return the entry of ``name``."""
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError.of(self.kind, name, self._entries) from None

    def remove(self, name: str) -> None:
        """Remove the entry of ``name``, for example to register another version in a notebook."""
        self.get(name)
        del self._entries[name]

    def names(self) -> list[str]:
        """Return all names in the order of registration."""
        return list(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


def check_options(kind: type, values: Mapping[str, Any], owner: str) -> None:
    """Reject values that are not of the type of the dataclass field with that name; messages name the ``owner``."""
    types = get_type_hints(kind)
    for name, value in values.items():
        wanted = get_args(types[name]) or (types[name],)  # a union's types
        accepted = (*wanted, int) if float in wanted else wanted
        if not isinstance(value, accepted) or (bool not in wanted and isinstance(value, bool)):
            names = " or ".join(kind.__name__ for kind in wanted)
            raise InvalidOptionError(
                f"The option '{name}' of {owner} is {value!r}.", hint=f"Give a value of type {names}."
            )
