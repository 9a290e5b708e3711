"""Labels under a template, tokenised for one text tower, with the positions that the tunable vectors take."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence

import torch

from poise.errors import InvalidLabelsError, InvalidOptionError, InvalidTemplateError
from poise.prompts.template import DEFAULT_TEMPLATE, Template
from poise.types import ClassTokens, DualEncoder, Prompt

_SHOWN = 5  # how many offenders an error names before it counts the rest
_MOST_LETTERS = 60  # of a label in a message


def check_labels(labels: Sequence[str], *, repeats: bool = False) -> tuple[str, ...]:
    """The labels as a tuple, or an error that names each index that is wrong.

    ``repeats`` lets a name stand twice, as "missile" and "sunglasses" do among ImageNet's published names.
    """
    if isinstance(labels, (str, bytes)) or not isinstance(labels, Sequence):
        raise InvalidLabelsError(
            f"Labels must be a list of strings, got {type(labels).__name__}.", hint="Pass ['cat', 'dog']."
        )
    if not labels:
        raise InvalidLabelsError("The list of labels is empty.", hint="Give at least one label.")
    wrong = [f"{i}: {label!r} ({type(label).__name__})" for i, label in enumerate(labels) if not isinstance(label, str)]
    if wrong:
        raise InvalidLabelsError(
            f"Labels must be strings; not so at index {_listed(wrong)}.", hint="Convert them with str()."
        )
    blank = [str(i) for i, label in enumerate(labels) if not _as_words(label).strip()]
    if blank:
        raise InvalidLabelsError(f"Blank labels at index {_listed(blank)}.", hint="Remove them or give them a name.")
    places: dict[str, list[int]] = defaultdict(list)
    for i, label in enumerate(labels):
        places[_as_words(label)].append(i)
    doubled = [f"{label!r} at indices {', '.join(map(str, at))}" for label, at in places.items() if len(at) > 1]
    if doubled and not repeats:
        raise InvalidLabelsError(f"Duplicate labels: {_listed(doubled)}.", hint="Each label must be there once.")
    return tuple(labels)


def tokenise(
    encoder: DualEncoder,
    labels: Sequence[str],
    template: str = DEFAULT_TEMPLATE,
    *,
    context: str = "auto",
    tokens: int | None = None,
    on_long_label: str = "error",
    repeats: bool = False,
) -> ClassTokens:
    """Token ids of every label's sentence and the slots of the tunable context.

    Args:
        encoder: whose tokenizer and length limit hold.
        labels: the class names; an underscore is read as a space.
        template: a sentence with one ``{}`` or ``{c}``.
        context: which words are tuned: "before" or "after" the name, "around" it, "none", or "auto"
            (those before the name if there are any, else those after it).
        tokens: tune only the first so many of the context's tokens (MaPLe: 2 of "a photo of a").
        on_long_label: "error", or "truncate" to cut names that do not fit, with a warning that lists them.
        repeats: accept labels that repeat, or that become the same tokens ("Cat" and "cat"); benchmarks have such
            classes, which then share their probability. By default they are refused.
    """
    if on_long_label not in ("error", "truncate"):
        raise InvalidOptionError(f"on_long_label={on_long_label!r} is not accepted.", hint="Accepted: error, truncate.")
    labels = check_labels(labels, repeats=repeats)
    parsed = Template.parse(template)
    sides = parsed.sides(context)
    names = [_as_words(label) for label in labels]
    start, before, end = _frame(encoder, parsed)
    rows = encoder.token_ids([parsed.fill(name) for name in names])
    _check_prefix(rows, labels, start + before, parsed)
    _check_specials(rows, labels, end)
    truncate = on_long_label == "truncate" and not sides[1]  # cutting the end would cut tunable words there
    rows = _limit_length(rows, labels, encoder.context_length, parsed, end, truncate=truncate)
    if not repeats:
        _check_distinct(rows, labels)
    shared = len(start + before)
    slots = [list(range(len(start), shared)) if sides[0] else [] for _ in rows]
    if sides[1]:
        slots = [
            row + more for row, more in zip(slots, _slots_after(encoder, parsed, names, rows, len(end)), strict=True)
        ]
    return ClassTokens(
        labels=labels,
        template=template,
        ids=_padded(rows, encoder),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=torch.tensor(_first_slots(slots, tokens), dtype=torch.long).reshape(len(rows), -1),
        shared=shared,
        fixed_length=encoder.fixed_length,
    )


def init_prompt(encoder: DualEncoder, classes: ClassTokens) -> Prompt:
    """The prompt [1, M, E] that equals the template's own words."""
    ids = classes.ids[0, classes.slots[0]]  # [M]; the same words in all rows
    return Prompt(encoder.embed(ids.to(encoder.device)).detach().clone()[None])


def _as_words(label: str) -> str:
    return label.replace("_", " ")


def _shown(label: str) -> str:
    """A label as a message shows it: recognisable, and never pages long."""
    return repr(label if len(label) <= _MOST_LETTERS else f"{label[: _MOST_LETTERS - 3]}...")


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return "; ".join(items[:_SHOWN]) + more


def _frame(encoder: DualEncoder, template: Template) -> tuple[list[int], list[int], list[int]]:
    """Special tokens in front, the words before the name, special tokens at the end."""
    blank = not template.before.strip()
    empty, words = encoder.token_ids(["", "a" if blank else template.before.rstrip()])
    end = _common(empty[::-1], words[::-1])
    start = _common(empty[: len(empty) - end], words)
    return words[:start], [] if blank else words[start : len(words) - end], words[len(words) - end :]


def _check_prefix(rows: list[list[int]], labels: Sequence[str], prefix: list[int], template: Template) -> None:
    for label, row in zip(labels, rows, strict=True):
        if row[: len(prefix)] != prefix:
            raise InvalidTemplateError(
                f"The model's tokenizer merges the words {template.before!r} with the label {_shown(label)}.",
                hint="Put a space between the template's words and the class name.",
            )


def _slots_after(
    encoder: DualEncoder, template: Template, names: list[str], rows: list[list[int]], end: int
) -> list[list[int]]:
    """The positions of the words after the name in each row; the words' ids must be the same in all rows."""
    heads = encoder.token_ids([template.before + name for name in names])
    bodies = encoder.token_ids([template.before + name + template.after for name in names])
    words: list[int] = []
    slots = []
    for name, head, body, row in zip(names, heads, bodies, rows, strict=True):
        at, stop = _common(head, row), _common(body, row)
        words = words or row[at:stop]
        if row[at:stop] != words or at < len(head) - end or stop < len(body) - end:
            raise InvalidTemplateError(
                f"The model's tokenizer merges the words {template.after!r} with the label {_shown(name)} or the tail.",
                hint="Put a space between the class name and the template's words.",
            )
        slots.append(list(range(at, at + len(words))))
    return slots


def _common(one: list[int], other: list[int]) -> int:
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


def _check_specials(rows: list[list[int]], labels: Sequence[str], end: list[int]) -> None:
    """The text feature is read at the end token, so a label must not bring another one."""
    for label, row in zip(labels, rows, strict=True):
        if end and end[0] in row[: len(row) - len(end)]:
            raise InvalidLabelsError(
                f"The label {_shown(label)} contains the model's end-of-text token.", hint="Remove it."
            )


def _check_distinct(rows: list[list[int]], labels: Sequence[str]) -> None:
    """Labels with the same tokens are one class to the model, and would share its probability."""
    seen: dict[tuple[int, ...], str] = {}
    for label, row in zip(labels, rows, strict=True):
        other = seen.setdefault(tuple(row), label)
        if other is not label:
            raise InvalidLabelsError(
                f"The model reads the labels {_shown(other)} and {_shown(label)} as the same tokens.",
                hint="Keep one of them: upper case, accents and spaces may make no difference to a tokenizer.",
            )


def _limit_length(
    rows: list[list[int]], labels: Sequence[str], limit: int, template: Template, end: list[int], *, truncate: bool
) -> list[list[int]]:
    """Rows within the limit: too long ones are cut before the end token where that is allowed."""
    long = [i for i, row in enumerate(rows) if len(row) > limit]
    if not long:
        return rows
    named = [f"{_shown(labels[i])} ({len(rows[i])} tokens)" for i in long]
    if not truncate:
        raise InvalidLabelsError(
            f"Too long under the template {template.text!r}: {_listed(named)}; the model reads {limit} tokens.",
            hint="Shorten the label, or pass on_long_label='truncate' with context words before the name.",
        )
    warnings.warn(f"Cut to the model's {limit} tokens: {'; '.join(named)}.", UserWarning, stacklevel=3)
    return [row[: limit - len(end)] + end if len(row) > limit else row for row in rows]


def _first_slots(slots: list[list[int]], tokens: int | None) -> list[list[int]]:
    if tokens is None:
        return slots
    available = len(slots[0])
    if not isinstance(tokens, int) or not 1 <= tokens <= available:
        raise InvalidOptionError(
            f"tokens={tokens!r} is not accepted.",
            hint=f"The template's context has {available} tokens: give 1..{available}.",
        )
    return [row[:tokens] for row in slots]


def _padded(rows: list[list[int]], encoder: DualEncoder) -> torch.Tensor:
    width = encoder.context_length if encoder.fixed_length else max(map(len, rows))
    return torch.tensor([row + [encoder.pad_id] * (width - len(row)) for row in rows], dtype=torch.long)
