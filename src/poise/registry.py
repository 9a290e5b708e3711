"""Registries of named objects, to which plug-ins add their own, and the check of options that rows take."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from poise import plugins
from poise.errors import InvalidOptionError, UnknownNameError

T = TypeVar("T")
M = TypeVar("M")


class Registry(Generic[T]):
    """Named objects of one kind; duplicate and unknown names raise errors.

    Plug-ins are loaded by the first question that they could answer: for a name that is not there, or for all names.
    What a plug-in adds is checked when it is added, so that a mistake is found before a run begins.

    Args:
        kind: what messages call an entry.
        of: the class of the entries; the fields of a dataclass must have their annotated types.

    >>> colours = Registry[int]("colour", of=int)
    >>> _ = colours.add("red")(0xFF0000)
    >>> colours.names()
    ['red']
    """

    def __init__(self, kind: str, *, of: type = object) -> None:
        self.kind = kind
        self._of = of
        self._entries: dict[str, T] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers its argument under ``name``."""
        if name in self._entries:
            raise InvalidOptionError(f"The {self.kind} '{name}' is registered already.", hint="Choose another name.")
        if not name.strip() or "," in name:
            raise InvalidOptionError(f"The name of the {self.kind} is '{name}'.", hint="Give one without commas.")

        def store(entry: T) -> T:
            self._check(name, entry)
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

    def _check(self, name: str, entry: T) -> None:
        if not isinstance(entry, self._of):
            raise InvalidOptionError(
                f"The {self.kind} '{name}' is {_describe(entry)}.", hint=f"Register a {_path(self._of)}."
            )
        if is_dataclass(entry):
            values = {field.name: getattr(entry, field.name) for field in fields(entry)}
            check_options(type(entry), values, f"the {self.kind} '{name}'")


class Makers(Registry[Callable[..., M]], Generic[M]):
    """A registry of classes, or functions, that make objects of one base class from options.

    Args:
        kind: what messages call an entry.
        base: the class that the objects derive from.
    """

    def __init__(self, kind: str, base: type[Any]) -> None:
        super().__init__(kind)
        self._base = base

    def make(self, name: str, options: Mapping[str, Any]) -> M:
        """Return the object that the entry of ``name`` makes; refuse missing options and objects of other classes."""
        make = self.get(name)
        for parameter in inspect.signature(make).parameters.values():
            optional = parameter.default is not parameter.empty or parameter.kind in _VARIADIC
            if not optional and parameter.name not in options:
                raise InvalidOptionError(
                    f"The {self.kind} '{name}' needs the option '{parameter.name}', which has no default.",
                    hint=f"Give it: {name}.{parameter.name}. What is registered is a class that derives from "
                    f"{_path(self._base)}, or a function that returns such an object.",
                )
        made = make(**options)
        if not isinstance(made, self._base):
            raise self._foreign(name, made)
        return made

    def _check(self, name: str, entry: Callable[..., M]) -> None:
        if not callable(entry) or (isinstance(entry, type) and not issubclass(entry, self._base)):
            raise self._foreign(name, entry)
        if inspect.isabstract(entry):
            missing = ", ".join(sorted(getattr(entry, "__abstractmethods__", ())))
            raise InvalidOptionError(f"The {self.kind} '{name}' has no {missing}.", hint="Define it in the class.")

    def _foreign(self, name: str, entry: object) -> InvalidOptionError:
        return InvalidOptionError(
            f"The {self.kind} '{name}' is {_describe(entry)}, which is no {self._base.__name__}.",
            hint=f"Derive its class from {_path(self._base)}.",
        )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _describe(entry: object) -> str:
    return f"the class {entry.__name__}" if isinstance(entry, type) else f"of the type {type(entry).__name__}"


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def check_options(make: Callable[..., Any], values: Mapping[str, Any], owner: str) -> None:
    """Reject values that are not of the type of the dataclass field or parameter with that name.

    Messages name the ``owner``. What has no annotation, or one that is no type, is not checked.
    """
    types = _types(make)
    for name, value in values.items():
        if accepted := _accepted(value, types.get(name, Any)):
            raise InvalidOptionError(f"The option '{name}' of {owner} is {value!r}.", hint=f"Give {accepted}.")


def _accepted(value: Any, kind: Any) -> str:
    """Return what an annotation accepts if ``value`` is something else, and "" if it is fine."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "" if value in parts else f"one of: {', '.join(map(str, parts))}"
    if origin is tuple and parts[1:] == (...,):  # a list does as well
        fine = isinstance(value, tuple | list) and not any(_accepted(entry, parts[0]) for entry in value)
        return "" if fine else f"a tuple of {getattr(parts[0], '__name__', parts[0])}"
    wanted = [get_origin(part) or part for part in (parts if isinstance(kind, UnionType) else [kind])]
    if Any in wanted or not all(isinstance(part, type) for part in wanted):
        return ""
    accepted = (*wanted, int) if float in wanted else tuple(wanted)
    if isinstance(value, accepted) and (bool in wanted or not isinstance(value, bool)):
        return ""
    return f"a value of type {' or '.join(part.__name__ for part in wanted)}"


@functools.cache
def _types(make: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(make)
    except (NameError, TypeError):  # of a package that imports types for a type checker alone
        return {}
