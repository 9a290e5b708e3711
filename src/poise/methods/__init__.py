"""The named methods: one row each, with all that is specific to a method."""

from __future__ import annotations

from poise.methods.lookup import (
    GROUPS,
    canonical,
    every_name,
    expand,
    get,
    methods,
    names,
    register,
    unregister,
)
from poise.methods.method import BAR, About, Method, Step, Term

__all__ = [
    "BAR",
    "GROUPS",
    "About",
    "Method",
    "Step",
    "Term",
    "canonical",
    "every_name",
    "expand",
    "get",
    "methods",
    "names",
    "register",
    "unregister",
]

from poise.methods import paper, peers, streams  # noqa: F401  (their rows register themselves)
