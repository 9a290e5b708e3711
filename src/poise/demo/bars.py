"""The answers: what the main method says, and bars of all methods side by side."""

from __future__ import annotations

from collections.abc import Sequence

from poise.demo.markup import card, change, labels_in_doubt, number, percent, text
from poise.report.colours import BLACK, look
from poise.results import Result
from poise.text import counted

TOP = 5  # labels with bars


def answer_card(results: Sequence[Result], main: Result, waiting: Sequence[str] = (), *, note: str = "") -> str:
    """Return the panel with the answers.

    Args:
        results: one per method, zero-shot first if it was asked.
        main: the one of them that the heading is about.
        waiting: methods whose answers are still being computed.
        note: a paragraph of HTML below the heading.
    """
    if main.groups is None:
        return card("The answer", _body(results, main, waiting, note) + _notes(main), name="poise-answer")
    parts = [
        _body([result.groups[name] for result in results if result.groups], part, waiting)
        for name, part in main.groups.items()
    ]
    about = "One answer for each group of labels, as if the other groups were not there."
    return card("The answers", note + "<hr>".join(parts) + _notes(main), about=about, name="poise-answer")


def label_card(main: Result) -> str:
    """Return the panel with independent labels: a bar for each of the most probable ones, and what is said of it."""
    said = main.outcomes or {}
    rows = "".join(
        f'<div class="label" role="group" aria-label="{text(label)}"><div class="name">{text(label)}'
        f"{f' <b>{said[label]}</b>' if label in said else ''}</div><div>{_bar(main, label, None)}</div></div>"
        for label, _ in main.top(2 * TOP)
    )
    rest = len(main.probabilities) - 2 * TOP
    more = f'<p class="say">{counted(rest, "further label")} below these.</p>' if rest > 0 else ""
    about = "Each label by itself: any number of them may apply."
    return card("The labels", f'<div class="bars">{rows}</div>{more}{_notes(main)}', about=about, name="poise-answer")


def _body(results: Sequence[Result], main: Result, waiting: Sequence[str], note: str = "") -> str:
    shown = _labels(results, main)
    rows = "".join(_label_row(label, results, waiting) for label in shown)
    rest = len(main.probabilities) - len(shown)
    more = f'<p class="say">{counted(rest, "further label")} below these.</p>' if rest else ""
    return (
        f'{_headline(_zero_shot(results), main)}{note}{_path(main)}<div class="bars">{rows}</div>{more}{_facts(main)}'
    )


def _labels(results: Sequence[Result], main: Result) -> list[str]:
    """Return the main method's most probable labels, and the answers of the others."""
    return list(dict.fromkeys([*(label for label, _ in main.top(TOP)), *(result.top(1)[0][0] for result in results)]))


def _zero_shot(results: Sequence[Result]) -> Result | None:
    return next((result for result in results if result.method == "zero-shot"), None)


def _headline(zero: Result | None, main: Result) -> str:
    best = main.top(1)[0][0]
    said = f'<p class="headline"><b>{text(best)}</b> <span>{number(main.confidence)}</span></p>'
    known = ""
    if main.raw_confidence is not None:
        known = f" Probabilities are calibrated; the model itself claims {percent(main.raw_confidence)}."
    if zero is None:
        return f'{said}<p class="say">This is the answer of {text(main.method)}.{known}</p>'
    if main is zero:
        return f'{said}<p class="say">This is the answer of zero-shot: nothing was tuned for it.{known}</p>'
    before, was = zero.probabilities[best], zero.top(1)[0][0]
    if was != best:
        how = f"Zero-shot prefers {text(was)} with {percent(zero.confidence)}; {text(main.method)} changed the answer."
    elif (moved := change(before, main.confidence)) == "±0.0":
        how = f"Zero-shot gives the same answer, and {text(main.method)} leaves its confidence as it is."
    else:
        verb = "lowered" if main.confidence < before else "raised"
        by = f"{text(main.method)} {verb} it by {moved[1:]} points"
        how = f"Zero-shot gives the same answer with {percent(before)}; {by}."
    return f'{said}<p class="say">{how}{known}</p>'


def _label_row(label: str, results: Sequence[Result], waiting: Sequence[str]) -> str:
    zero = _zero_shot(results)
    lines = [
        _bar(result, label, zero.probabilities[label] if zero and result is not zero else None) for result in results
    ]
    lines += [
        f'<div class="bar waiting"><span class="method">{text(name)}</span><span class="track"></span>'
        f'<span class="value">…</span><span class="change"></span></div>'
        for name in waiting
    ]
    return (
        f'<div class="label" role="group" aria-label="{text(label)}"><div class="name">{text(label)}</div>'
        f"<div>{''.join(lines)}</div></div>"
    )


def _bar(result: Result, label: str, before: float | None) -> str:
    prob = result.probabilities[label]
    moved = "" if before is None else f'{change(before, prob)}<span class="unit"> points</span>'
    where = f'data-method="{text(result.method)}" data-label="{text(label)}"'
    return (
        f'<div class="bar" {where}><span class="method">{text(result.method)}</span>'
        f'<span class="track"><i style="width:{100 * prob:.2f}%;background:{colour(result.method)}"></i></span>'
        f'<span class="value">{number(prob)}</span><span class="change">{moved}</span></div>'
    )


def _facts(main: Result) -> str:
    """Return confidence, margin and entropy, in words."""
    ranked = main.top(2)
    if main.degenerate:
        return '<p class="say">There is only one label, so its probability is 100 % for any image. Give more.</p>'
    second = text(ranked[1][0])
    facts = (
        ("Lead", f"{100 * main.margin:.1f} points", f"ahead of {second} (margin {main.margin:.3f})"),
        (
            "Effective number of labels",
            f"{labels_in_doubt(main.entropy)} of {len(main.probabilities)}",
            f"from 1 (certain) to {len(main.probabilities)} (undecided); entropy {main.entropy:.3f}",
        ),
    )
    items = "".join(f"<div><dt>{name}</dt><dd><b>{value}</b> {words}</dd></div>" for name, value, words in facts)
    return f'<dl class="facts">{items}</dl>'


def _path(main: Result) -> str:
    """Return the way through the tree with the probability of each node, and which node is sure enough."""
    if main.path is None:
        return ""
    known = {**main.probabilities, **(main.nodes or {})}
    steps = " &gt; ".join(
        f"{'<b>' if node == main.node else ''}{text(node)} {percent(known[node])}{'</b>' if node == main.node else ''}"
        for node in main.path
    )
    sure = ""
    if main.decision is not None:
        sure = f" Sure enough: {text(main.node)}." if main.node else " No node is sure enough."
    return f'<p class="say" id="poise-path">In the tree: {steps}.{sure}</p>'


def _notes(main: Result) -> str:
    notes = list(main.notes)
    if main.fallback:
        notes.append("Tuning gave numbers that are not finite, so this is the answer without it.")
    return f'<p class="say">Note: {text("; ".join(notes))}</p>' if notes else ""


def colour(method: str) -> str:
    """Return a method's colour in reports, as CSS; black becomes the colour of text, which follows the mode."""
    shade = look(method).colour.lower()
    return "var(--ink)" if shade == BLACK else shade
