"""A template is one sentence with one place for the class name; its words are what prompt tuning tunes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poise.errors import InvalidOptionError, InvalidTemplateError

DEFAULT_TEMPLATE = "a photo of a {}."
CONTEXTS = ("auto", "before", "after", "around", "none")

_PLACE = re.compile(r"\{c?\}")
_TAIL = re.compile(r"\s*[.!?]+\s*$")
_WORD = re.compile(r"\w")


@dataclass(frozen=True)
class Template:
    """The parts of a template: words before the name, words after it, and final punctuation that stays fixed.

    >>> Template.parse("a photo of a {}, a type of pet.")
    Template(text='a photo of a {}, a type of pet.', before='a photo of a ', after=', a type of pet', tail='.')
    """

    text: str
    before: str
    after: str
    tail: str

    @classmethod
    def parse(cls, text: str) -> Template:
        """Split ``text`` at its only ``{}`` or ``{c}``."""
        if not isinstance(text, str):
            raise InvalidTemplateError(f"A template must be a string, got {type(text).__name__}.", hint=_ACCEPTED)
        places = _PLACE.findall(text)
        if len(places) != 1:
            raise InvalidTemplateError(
                f"The template {text!r} has {len(places)} places for the class name.", hint=_ACCEPTED
            )
        before, after = _PLACE.split(text)
        if re.search(r"[{}]", before + after):
            raise InvalidTemplateError(
                f"The template {text!r} has other braces besides the class name's.", hint=_ACCEPTED
            )
        tail = _TAIL.search(after)
        cut = tail.start() if tail else len(after)
        return cls(text, before, after[:cut], after[cut:])

    def fill(self, name: str) -> str:
        """The sentence for one class name."""
        return f"{self.before}{name}{self.after}{self.tail}"

    def sides(self, context: str) -> tuple[bool, bool]:
        """Whether the words before the name, and those after it, are tuned under the option ``context``."""
        if context not in CONTEXTS:
            raise InvalidOptionError(f"context={context!r} is not accepted.", hint=f"Accepted: {', '.join(CONTEXTS)}.")
        has_before, has_after = bool(_WORD.search(self.before)), bool(_WORD.search(self.after))
        if context == "none":
            return False, False
        if context == "auto":
            if not (has_before or has_after):
                raise InvalidTemplateError(
                    f"The template {self.text!r} has no words to tune.",
                    hint=f"Add words, as in {DEFAULT_TEMPLATE!r}, or use context='none' to classify without tuning.",
                )
            return has_before, not has_before
        wanted = (context in ("before", "around"), context in ("after", "around"))
        for side, want, has in (("before", wanted[0], has_before), ("after", wanted[1], has_after)):
            if want and not has:
                raise InvalidTemplateError(
                    f"context={context!r} needs words {side} the class name, and the template {self.text!r} has none.",
                    hint="Add words there or choose another context.",
                )
        return wanted


_ACCEPTED = f"Accepted: text with exactly one '{{}}' or '{{c}}', as in {DEFAULT_TEMPLATE!r}."
