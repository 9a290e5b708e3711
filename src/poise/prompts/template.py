"""A template: a sentence with one placeholder for the class name, whose other words are tuned."""

from __future__ import annotations

import re
from dataclasses import dataclass

from poise.errors import InvalidOptionError, InvalidTemplateError

DEFAULT_TEMPLATE = "a photo of a {}."
CONTEXTS = ("auto", "before", "after", "around", "none")

_PLACEHOLDER = re.compile(r"\{c?\}")
_ACCEPTED = f"Accepted: text with exactly one '{{}}' or '{{c}}', as in {DEFAULT_TEMPLATE!r}."


@dataclass(frozen=True)
class Template:
    """The parts of a template: words before and after the class name, and final punctuation, which is not tuned.

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
        parts = _PLACEHOLDER.split(text)
        if len(parts) != 2:
            raise InvalidTemplateError(f"The template {text!r} has {len(parts) - 1} placeholders.", hint=_ACCEPTED)
        before, after = parts
        if re.search(r"[{}]", before + after):
            raise InvalidTemplateError(f"The template {text!r} has braces besides the placeholder.", hint=_ACCEPTED)
        tail = re.search(r"\s*[.!?]+\s*$", after)
        cut = tail.start() if tail else len(after)
        return cls(text, before, after[:cut], after[cut:])

    def fill(self, name: str) -> str:
        """Return the sentence for one class name."""
        return f"{self.before}{name}{self.after}{self.tail}"

    def sides(self, context: str) -> tuple[bool, bool]:
        """Return whether the words before and after the class name are tuned under the option ``context``."""
        if context not in CONTEXTS:
            raise InvalidOptionError(f"context={context!r} is not accepted.", hint=f"Accepted: {', '.join(CONTEXTS)}.")
        has_words = {"before": bool(re.search(r"\w", self.before)), "after": bool(re.search(r"\w", self.after))}
        if context == "auto":
            if not any(has_words.values()):
                raise InvalidTemplateError(
                    f"The template {self.text!r} has no words to tune.",
                    hint=f"Add words, as in {DEFAULT_TEMPLATE!r}, or use context='none' to classify without tuning.",
                )
            return has_words["before"], not has_words["before"]
        tuned = {side: context in (side, "around") for side in has_words}
        for side in tuned:
            if tuned[side] and not has_words[side]:
                raise InvalidTemplateError(
                    f"context={context!r} needs words {side} the class name, and the template {self.text!r} has none.",
                    hint="Add words there or choose another context.",
                )
        return tuned["before"], tuned["after"]
