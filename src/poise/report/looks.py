"""Colours of reports, and how a method appears in them."""

from __future__ import annotations

from dataclasses import replace

from poise import methods
from poise.errors import InvalidOptionError, UnknownNameError

# From Okabe and Ito's palette, which colour-blind readers can tell apart, and three greys
BLACK, SKY, BLUE, VERMILION = "#000000", "#56b4e9", "#0072b2", "#d55e00"
GREY, PALE, WHITE = "#8a8a8a", "#e4e4e4", "#ffffff"

CALIBRATED = " | calibrated"  # the end of the name of a calibrated method


def base(method: str) -> str:
    """Return the method that a calibrated one is made from; others are their own."""
    return method.removesuffix(CALIBRATED)


def look(method: str) -> methods.About:
    """Return a method's order, colour and line style; methods that are not registered come last and are grey.

    A calibrated method has the colour of the one that it is made from, and another line style.
    """
    name = base(method)
    try:
        about = methods.get(name).about
    except (UnknownNameError, InvalidOptionError):
        about = methods.About()
    return about if name == method else replace(about, dash="-" if about.dash == ":" else ":")


def marker(method: str) -> str:
    """Return the marker of a method: a dot, or a square if it is calibrated."""
    return "o" if base(method) == method else "s"


def order(method: str) -> tuple[int, str]:
    """Return the sort key of a method."""
    return look(method).order, method
