"""What an answer is good for, in plain words: what is guaranteed, what is a hint, and what nobody knows yet."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from poise.demo.markup import card, percent, text
from poise.results import Result

Kind = Literal["guarantee", "estimate", "hint", "unknown"]
_CONDITION = "for images like the calibration images"


@dataclass(frozen=True)
class Basis:
    """What the answers of the server were compared with.

    Attributes:
        images: number of calibration images; 0 if the answer is not calibrated.
        coverage: of the prediction set that is shown.
        reason: why an answer is not calibrated although the server has a calibration.
    """

    images: int = 0
    coverage: float = 0.9
    reason: str = ""


def advice_card(result: Result, basis: Basis) -> str:
    """Return the panel "If you act on this"."""
    points = [_trust(result, basis), *_guarantees(result, basis), _none_of_these(result)]
    body = "".join(
        f'<li><span class="kind {kind}">{_WORDS[kind]}</span><div><b>{question}</b> {answer}</div></li>'
        for kind, question, answer in points
    )
    more = "" if basis.images else _how_to(result.method, basis.reason)
    return card("If you act on this", f'<ul class="advice">{body}</ul>{more}', name="poise-advice")


def label_advice(result: Result) -> str:
    """Return the panel for independent labels."""
    kind: Kind = "unknown" if result.guarantee is None else "guarantee"
    said = result.guarantee or "No precision or recall was asked for, so that no label gets a yes or a no."
    return card(
        "If you act on this",
        f'<ul class="advice"><li><span class="kind {kind}">{_WORDS[kind]}</span><div><b>Which labels apply?</b> '
        f"{text(said)}</div></li></ul>",
        name="poise-advice",
    )


_WORDS: dict[Kind, str] = {
    "guarantee": "guaranteed",
    "estimate": "estimated",
    "hint": "a hint only",
    "unknown": "not known",
}


def _trust(result: Result, basis: Basis) -> tuple[Kind, str, str]:
    question = "How often is such an answer right?"
    if not basis.images:
        return (
            "unknown",
            question,
            (
                f"The model claims {percent(result.confidence)}. Nobody has compared its claims with the truth on your "
                "images, and models are often surer than they are right."
            ),
        )
    assert result.raw_confidence is not None
    return (
        "estimate",
        question,
        (
            f"About {100 * result.confidence:.0f} in 100, {_CONDITION}. The model claims "
            f"{percent(result.raw_confidence)}; {basis.images} labelled images showed how far its claims can "
            "be trusted."
        ),
    )


def _guarantees(result: Result, basis: Basis) -> list[tuple[Kind, str, str]]:
    """Return the prediction set and the decision, or that there is neither."""
    if not basis.images:
        return [
            (
                "unknown",
                "Answer, or leave it to a person?",
                "You may answer only from some confidence on, but nobody knows yet how many of these answers are "
                "wrong.",
            )
        ]
    labels = result.prediction_set if result.prediction_set is not None else result.set_at(basis.coverage)
    members = " ".join(f"<code>{text(label)}</code>" for label in labels)
    share = f"{100 * basis.coverage:g} of 100"
    points: list[tuple[Kind, str, str]] = [
        (
            "guarantee",
            "Which labels may it be?",
            f"{members} Such a set contains the correct label in {share} cases on average, {_CONDITION}.",
        )
    ]
    if result.decision:
        do = "Answer." if result.decision == "answer" else "Abstain: leave it to a person."
        do = f"Answer “{text(result.node)}”." if result.node is not None else do
        points.append(("guarantee", "Answer, or leave it to a person?", f"{do} {text(result.guarantee)}"))
    return points


def _none_of_these(result: Result) -> tuple[Kind, str, str]:
    return (
        "hint",
        "Is it none of these labels?",
        (
            f"The image matches the best label {result.match:.3f} better than the labels on average (match). "
            "Low values suggest something else, but no limit suits all labels: compare with images that you know. "
            "Confidence does not show it, because one of your labels always has to win."
        ),
    )


def _how_to(method: str, reason: str) -> str:
    why = f"<p>{text(reason)}</p>" if reason else ""
    command = f"poise calibrate labelled --method {shlex.quote(method)} --out calibration.json"
    again = "poise demo --calibration calibration.json"
    return (
        f'<details class="how"><summary>How to get a guarantee</summary>{why}<p>Label about 100 images, taken at '
        "random from those that you want to classify: one folder per label, all in a folder called "
        "<code>labelled</code>. Then run this, and this page shows how often such answers are right, which labels "
        f"to keep in mind and when to abstain:</p><pre>{text(command)}\n{text(again)}</pre></details>"
    )
