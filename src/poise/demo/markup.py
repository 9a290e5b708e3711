"""Small pieces of HTML, and the templates of the panels. Every text passes through `text`, in templates by itself."""

from __future__ import annotations

import html
import math
from functools import cache
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from poise.report.html import environment
from poise.text import counted

MINUS = "\u2212"  # as wide as a plus
# gradio renders HTML components as templates, so the signs of its template languages are escaped too.
_TEMPLATE_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "{}$`\\"}


def text(value: object) -> Markup:
    """Return a value as inert HTML text, which may also stand in a quoted attribute."""
    return Markup(html.escape(str(value)).translate(_TEMPLATE_SIGNS))


def rendered(template: str, **values: Any) -> str:
    """Return a template of this package with values; texts pass through `text`, and `Markup` is put in as it is."""
    return _environment().get_template(template).render(values)  # plain text, which gradio may escape as such


@cache
def _environment() -> Environment:
    made = environment("poise.demo", text)
    made.filters |= {"percent": percent, "number": number}
    made.globals |= {"change": change, "labels_in_doubt": labels_in_doubt, "counted": counted}
    return made


def percent(prob: float) -> Markup:
    """Return a probability as HTML for people; 0 and 100 % are only written where they are exact.

    >>> [str(percent(prob)) for prob in (0.8143, 0.99999, 0.0, 1e-7)]
    ['81.4 %', '&gt; 99.9 %', '0 %', '&lt; 0.1 %']
    """
    if prob in (0.0, 1.0):
        return text(f"{100 * prob:.0f} %")
    if prob < 0.0005:
        return text("< 0.1 %")
    return text("> 99.9 %" if prob >= 0.9995 else f"{100 * prob:.1f} %")


def number(prob: float) -> Markup:
    """Return a probability with its exact value as an attribute."""
    return Markup(rendered("number.html", prob=prob))


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
    return rendered("card.html", title=title, body=Markup(body), about=Markup(about), name=name)


def alert(message: str, hint: str = "") -> str:
    """Return an error message."""
    return rendered("alert.html", message=message, hint=hint)


def status(message: str, *, busy: bool = False, seconds: float | None = None) -> str:
    """Return a line about progress, with a moving bar while something is computed. The message is HTML."""
    return rendered("status.html", message=Markup(message), busy=busy, seconds=seconds)
