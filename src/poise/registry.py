"""A registry of named objects, to which plug-ins add their own, and the check of options that rows take."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from poise import plugins
from poise.errors import InvalidOptionError, UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """Named objects of one kind; duplicate and unknown names raise errors.

    Plug-ins are loaded by the first question that they could answer: for a name that is not there, or for all names.

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
        if name not in self:
            raise UnknownNameError.of(self.kind, name, self._entries)
        return self._entries[name]

    def remove(self, name: str) -> None:
        """Remove the entry of ``name``, for example to register another version in a notebook."""
        self.get(name)
        del self._entries[name]

    def names(self) -> list[str]:
        """Return all names in the order of registration."""
        plugins.load()
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            plugins.load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def check_options(make: Callable[..., Any], values: Mapping[str, Any], owner: str) -> None:
    """Reject values that are not of the type of the dataclass field or parameter with that name.

    Messages name the ``owner``. What has no annotation, or one that is no type, is not checked.
    """
    types = _types(make)
    for name, value in values.items():
        kind = types.get(name, Any)
        wanted = [get_origin(part) or part for part in (get_args(kind) if isinstance(kind, UnionType) else [kind])]
        if Any in wanted or not all(isinstance(part, type) for part in wanted):
            continue
        accepted = (*wanted, int) if float in wanted else tuple(wanted)
        if not isinstance(value, accepted) or (bool not in wanted and isinstance(value, bool)):
            names = " or ".join(part.__name__ for part in wanted)
            raise InvalidOptionError(
                f"The option '{name}' of {owner} is {value!r}.", hint=f"Give a value of type {names}."
            )


@functools.cache
def _types(make: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(make)
    except (NameError, TypeError):  # of a package that imports types for a type checker alone
        return {}
