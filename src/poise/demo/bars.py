"""The answers: what the main method says, and bars of all methods side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from poise.demo.markup import card, change, rendered
from poise.report.colours import BLACK, look
from poise.results import Result

TOP = 5  # labels with bars


def answer_card(results: Sequence[Result], main: Result, waiting: Sequence[str] = (), *, note: str = "") -> str:
    """Return the panel with the answers.

    Args:
        results: one per method, zero-shot first if it was asked.
        main: the one of them that the heading is about.
        waiting: methods whose answers are still being computed.
        note: a paragraph of HTML below the heading.
    """
    title, about, parts = "The answer", "", [_part(results, main)]
    if main.groups is not None:
        title, about = "The answers", "One answer for each group of labels, as if the other groups were not there."
        parts = [
            _part([result.groups[name] for result in results if result.groups], part)
            for name, part in main.groups.items()
        ]
    body = rendered("answer.html", parts=parts, main=main, waiting=waiting, note=Markup(note), colour=colour)
    return card(title, body, about=about, name="poise-answer")


def label_card(main: Result) -> str:
    """Return the panel with independent labels: a bar for each of the most probable ones, and what is said of it."""
    labels = [label for label, _ in main.top(2 * TOP)]
    body = rendered("labels.html", main=main, labels=labels, said=main.outcomes or {}, colour=colour)
    return card("The labels", body, about="Each label by itself: any number of them may apply.", name="poise-answer")


def _part(results: Sequence[Result], main: Result) -> dict[str, Any]:
    """Return what one block of bars shows: the main method's most probable labels, and the answers of the others."""
    zero = next((result for result in results if result.method == "zero-shot"), None)
    ranked = [label for label, _ in main.top(TOP)]
    best = ranked[0]
    return {
        "results": results,
        "main": main,
        "zero": zero,
        "labels": list(dict.fromkeys([*ranked, *(result.top(1)[0][0] for result in results)])),
        "best": best,
        "second": ranked[1] if len(ranked) > 1 else "",
        "was": zero and zero.top(1)[0][0],
        "moved": zero and change(zero.probabilities[best], main.confidence),
        "known": {**main.probabilities, **(main.nodes or {})},
    }


def colour(method: str) -> str:
    """Return a method's colour in reports, as CSS; black becomes the colour of text, which follows the mode."""
    shade = look(method).colour.lower()
    return "var(--ink)" if shade == BLACK else shade
