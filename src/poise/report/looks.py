"""How a method looks in reports: its place among the others, its colour and its line."""

from __future__ import annotations

from dataclasses import dataclass

from poise import methods

# Okabe and Ito's palette, which colour-blind readers can tell apart
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7",
)  # fmt: skip
GREY, PALE, WHITE = "#8a8a8a", "#e4e4e4", "#ffffff"


@dataclass(frozen=True)
class Look:
    """A method's place, colour and line style."""

    order: tuple[int, str]
    colour: str
    dash: str


def look(method: str) -> Look:
    """The looks of a method; those that are not registered come last and are grey."""
    known = methods.names()
    about = methods.get(method).about if method in known else methods.About()
    return Look((known.index(method) if method in known else len(known), method), about.colour, about.dash)
