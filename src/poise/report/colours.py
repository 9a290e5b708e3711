"""Colours of reports, and how a method appears in them."""

from __future__ import annotations

from dataclasses import replace

from poise import methods
from poise.errors import InvalidOptionError, UnknownNameError

# From Okabe and Ito's palette, which colour-blind readers can tell apart, and four greys
BLACK, BLUE, VERMILION = "#000000", "#0072b2", "#d55e00"
GREY, MUTED, PALE, WHITE = "#767676", "#a9b4bf", "#e4e4e4", "#ffffff"
OVER, UNDER = VERMILION, BLUE  # confidence above accuracy, and below
BETTER, WORSE = BLUE, VERMILION
# What the greys become on a dark page; other colours are lightened, see `on_dark`.
DARK_CARD = "#1a1f26"
_DARK = {BLACK: "#e8ebef", GREY: "#a0a8b2", MUTED: "#5d6975", PALE: "#343c46", WHITE: DARK_CARD}

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


def on_dark(colour: str) -> str:
    """Return the colour of a figure on a dark page: mixed with white until its contrast to the card is 4.5.

    >>> on_dark("#332288")
    '#8f85be'
    """
    if (lower := colour.lower()) in _DARK:
        return _DARK[lower]
    channels = [int(lower[at : at + 2], 16) for at in (1, 3, 5)]
    mixes = ([round(part + share / 20 * (255 - part)) for part in channels] for share in range(21))
    chosen = next(mix for mix in mixes if contrast("#{:02x}{:02x}{:02x}".format(*mix), DARK_CARD) >= 4.5)
    return "#{:02x}{:02x}{:02x}".format(*chosen)


def contrast(one: str, two: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it, 1 to 21."""
    light = []
    for colour in (one, two):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)
