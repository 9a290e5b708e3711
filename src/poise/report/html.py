"""HTML from Jinja2 templates, those of this package and of others; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from poise.text import printable


def rendered(template: str, **values: Any) -> Markup:
    """Return a template with values; texts are escaped, and `Markup` is put in as it is."""
    return Markup(_environment().get_template(template).render(values))


def source(name: str) -> Markup:
    """Return a style sheet or a script, which is part of poise."""
    return Markup(_environment().loader.get_source(_environment(), name)[0])  # type: ignore[union-attr]


@cache
def _environment() -> Environment:
    return environment("poise.report", printable)


def environment(package: str, inert: Callable[[str], str]) -> Environment:
    """Return the templates of a package.

    Args:
        package: its folder ``templates`` has them.
        inert: called with each text; what it returns is escaped, unless it is `Markup`.
    """
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: inert(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
