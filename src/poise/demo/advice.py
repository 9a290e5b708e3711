"""What an answer is good for, in plain words: what is guaranteed, what is a hint, and what nobody knows yet."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from poise.demo.markup import card, rendered
from poise.results import Result

_WORDS = {  # what is known about each kind of statement
    "guarantee": "guaranteed",
    "estimate": "estimated",
    "hint": "a hint only",
    "unknown": "not known",
}


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
    members: tuple[str, ...] = ()
    if basis.images:
        members = result.prediction_set if result.prediction_set is not None else result.set_at(basis.coverage)
    commands = (
        f"poise calibrate labelled --method {shlex.quote(result.method)} --out calibration.json",
        "poise demo --calibration calibration.json",
    )
    body = rendered("advice.html", result=result, basis=basis, members=members, commands=commands, words=_WORDS)
    return card("If you act on this", body, name="poise-advice")


def label_advice(result: Result) -> str:
    """Return the panel for independent labels."""
    kind = "unknown" if result.guarantee is None else "guarantee"
    said = result.guarantee or "No precision or recall was asked for, so that no label gets a yes or a no."
    return card(
        "If you act on this", rendered("label_advice.html", kind=kind, said=said, words=_WORDS), name="poise-advice"
    )
