"""Colours of reports, and how a method appears in them."""

from __future__ import annotations

from poise import methods

# From Okabe and Ito's palette, which colour-blind readers can tell apart, and three greys
BLACK, SKY, BLUE, VERMILION = "#000000", "#56b4e9", "#0072b2", "#d55e00"
GREY, PALE, WHITE = "#8a8a8a", "#e4e4e4", "#ffffff"


def look(method: str) -> methods.About:
    """Return a method's order, colour and line style; methods that are not registered come last and are grey."""
    return methods.get(method).about if method in methods.names() else methods.About()


def order(method: str) -> tuple[int, str]:
    """Return the sort key of a method."""
    return look(method).order, method
