"""HTML from the Jinja2 templates beside this file; every text in them is escaped."""

from __future__ import annotations

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
    return Environment(
        loader=PackageLoader("poise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
