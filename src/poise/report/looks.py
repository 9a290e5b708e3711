"""Colours of reports, and how a method appears in them."""

from __future__ import annotations

from poise import methods
from poise.errors import InvalidOptionError, UnknownNameError

# From Okabe and Ito's palette, which colour-blind readers can tell apart, and three greys
BLACK, SKY, BLUE, VERMILION = "#000000", "#56b4e9", "#0072b2", "#d55e00"
GREY, PALE, WHITE = "#8a8a8a", "#e4e4e4", "#ffffff"


def look(method: str) -> methods.About:
    """Return a method's order, colour and line style; methods that are not registered come last and are grey."""
    try:
        return methods.get(method).about
    except (UnknownNameError, InvalidOptionError):
        return methods.About()


def order(method: str) -> tuple[int, str]:
    """Return the sort key of a method."""
    return look(method).order, method
