"""Small pieces of HTML. Everything that a user can type passes through `text`."""

from __future__ import annotations

import html
import math

MINUS = "\u2212"  # as wide as a plus
# gradio renders HTML components as templates, so the signs of its template languages are escaped too.
_TEMPLATE_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "{}$`\\"}


def text(value: object) -> str:
    """Return a value as inert HTML text, which may also stand in a quoted attribute."""
    return html.escape(str(value)).translate(_TEMPLATE_SIGNS)


def percent(prob: float) -> str:
    """Return a probability as HTML for people; 0 and 100 % are only written where they are exact.

    >>> percent(0.8143), percent(0.99999), percent(0.0), percent(1e-7)
    ('81.4 %', '&gt; 99.9 %', '0 %', '&lt; 0.1 %')
    """
    if prob in (0.0, 1.0):
        return f"{100 * prob:.0f} %"
    if prob < 0.0005:
        return "&lt; 0.1 %"
    return "&gt; 99.9 %" if prob >= 0.9995 else f"{100 * prob:.1f} %"


def number(prob: float) -> str:
    """Return a probability with its exact value as an attribute."""
    return f'<data value="{prob!r}">{percent(prob)}</data>'


def change(before: float, after: float) -> str:
    """Return a change of probability in percentage points, as the difference of the rounded values.

    >>> change(0.8774, 0.8136), change(0.5, 0.5001)
    ('−6.3', '±0.0')
    """
    points = round(round(100 * after, 1) - round(100 * before, 1), 1)
    return f"{'±' if points == 0 else '+' if points > 0 else MINUS}{abs(points):.1f}"


def labels_in_doubt(entropy: float) -> str:
    """Return an entropy in nats as the number of equally probable labels that would have it.

    >>> labels_in_doubt(math.log(2)), labels_in_doubt(0.0)
    ('2.0', '1.0')
    """
    return f"{math.exp(entropy):.1f}"


def card(title: str, body: str, *, about: str = "", name: str = "") -> str:
    """Return a section with a heading; ``about`` is a line below it, ``name`` its id. All but the title is HTML."""
    line = f'<p class="say">{about}</p>' if about else ""
    where = f' id="{name}"' if name else ""
    return f'<section class="poise-card poise-shown"{where}><h2>{text(title)}</h2>{line}{body}</section>'


def alert(message: str, hint: str = "") -> str:
    """Return an error message."""
    return f'<div class="poise-alert poise-shown" role="alert"><strong>{text(message)}</strong> {text(hint)}</div>'


def status(message: str, *, busy: bool = False, seconds: float | None = None) -> str:
    """Return a line about progress, with a moving bar while something is computed. The message is HTML."""
    after = f' <span class="seconds">{seconds:.1f} s</span>' if seconds is not None else ""
    moving = '<div class="moving" aria-hidden="true"></div>' if busy else ""
    return f'<div class="poise-status poise-shown" role="status">{message}{after}{moving}</div>'
