"""Labels in a template, tokenised for one text tower, with the positions of the tunable vectors."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from poise.errors import InvalidLabelsError, InvalidOptionError, InvalidTemplateError
from poise.prompts.labels import check_labels, listed, shortened
from poise.prompts.template import DEFAULT_TEMPLATE, Template
from poise.text import as_words
from poise.types import ClassTokens, DualEncoder, Prompt


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
    """Tokenise the sentences of all labels and locate the tunable context in them.

    Args:
        encoder: Model whose tokenizer and maximum length apply.
        labels: Class names; underscores are read as spaces.
        template: Sentence with one ``{}`` or ``{c}``.
        context: Which words are tuned: those "before" or "after" the class name, "around" it, "none", or "auto"
            (those before the name if there are any, else those after it).
        tokens: Number of context tokens to tune, counted from the first; None for all. MaPLe tunes 2 of "a photo of a".
        on_long_label: "error", or "truncate" to cut labels that are too long, with a warning that lists them.
        repeats: Whether to accept labels that are equal, or that have equal tokens ("Cat" and "cat"). Some benchmarks
            have such classes, which share their probability.
    """
    if on_long_label not in ("error", "truncate"):
        raise InvalidOptionError(f"on_long_label={on_long_label!r} is not accepted.", hint="Accepted: error, truncate.")
    labels = check_labels(labels, repeats=repeats)
    parsed = Template.parse(template)
    tune_before, tune_after = parsed.sides(context)
    names = [as_words(label) for label in labels]
    start, before, end = _frame(encoder, parsed)
    rows = encoder.token_ids([parsed.fill(name) for name in names])
    _check_rows(rows, labels, start + before, end, parsed)
    truncate = on_long_label == "truncate" and not tune_after  # cutting the end would cut tunable words there
    rows = _limit_length(rows, labels, encoder.context_length, parsed, end, truncate=truncate)
    if not repeats:
        _check_distinct(rows, labels)
    shared = len(start + before)
    slots = [list(range(len(start), shared)) if tune_before else [] for _ in rows]
    if tune_after:
        after = _slots_after(encoder, parsed, names, rows, len(end))
        slots = [row + more for row, more in zip(slots, after, strict=True)]
    width = encoder.context_length if encoder.fixed_length else max(map(len, rows))
    return ClassTokens(
        labels=labels,
        template=template,
        ids=torch.tensor([row + [encoder.pad_id] * (width - len(row)) for row in rows], dtype=torch.long),
        lengths=torch.tensor([len(row) for row in rows]),
        slots=torch.tensor(_first_slots(slots, tokens), dtype=torch.long).reshape(len(rows), -1),
        shared=shared,
        fixed_length=encoder.fixed_length,
    )


def init_prompt(encoder: DualEncoder, classes: ClassTokens) -> Prompt:
    """Return the prompt [1, M, E] made of the embeddings of the template's words."""
    ids = classes.ids[0, classes.slots[0]]  # [M]; the same words in all rows
    return Prompt(encoder.embed(ids.to(encoder.device)).detach().clone()[None])


def _frame(encoder: DualEncoder, template: Template) -> tuple[list[int], list[int], list[int]]:
    """Return the special tokens at the start, the words before the class name, and the special tokens at the end."""
    blank = not template.before.strip()
    empty, words = encoder.token_ids(["", "a" if blank else template.before.rstrip()])
    end = _common(empty[::-1], words[::-1])
    start = _common(empty[: len(empty) - end], words)
    return words[:start], [] if blank else words[start : len(words) - end], words[len(words) - end :]


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _check_rows(
    rows: list[list[int]], labels: Sequence[str], prefix: list[int], end: list[int], template: Template
) -> None:
    for label, row in zip(labels, rows, strict=True):
        if row[: len(prefix)] != prefix:
            raise InvalidTemplateError(
                f"The model's tokenizer merges the words {template.before!r} with the label {shortened(label)}.",
                hint="Put a space between the template's words and the class name.",
            )
        if end and end[0] in row[: len(row) - len(end)]:  # the text feature is read at the end token
            raise InvalidLabelsError(
                f"The label {shortened(label)} contains the model's end-of-text token.", hint="Remove it."
            )


def _slots_after(
    encoder: DualEncoder, template: Template, names: list[str], rows: list[list[int]], end: int
) -> list[list[int]]:
    """Return the positions of the words after the class name in each row. Their ids must be the same in all rows."""
    heads = encoder.token_ids([template.before + name for name in names])
    bodies = encoder.token_ids([template.before + name + template.after for name in names])
    words: list[int] = []
    slots = []
    for name, head, body, row in zip(names, heads, bodies, rows, strict=True):
        start, stop = _common(head, row), _common(body, row)
        words = words or row[start:stop]
        if row[start:stop] != words or start < len(head) - end or stop < len(body) - end:
            raise InvalidTemplateError(
                f"The model's tokenizer merges the words {template.after!r} with {shortened(name)} or the tail.",
                hint="Put a space between the class name and the template's words.",
            )
        slots.append(list(range(start, start + len(words))))
    return slots


def _check_distinct(rows: list[list[int]], labels: Sequence[str]) -> None:
    """Raise an error if two labels have the same tokens, since the model could not distinguish them."""
    seen: dict[tuple[int, ...], str] = {}
    for label, row in zip(labels, rows, strict=True):
        other = seen.setdefault(tuple(row), label)
        if other is not label:
            raise InvalidLabelsError(
                f"The model reads the labels {shortened(other)} and {shortened(label)} as the same tokens.",
                hint="Remove one of them: tokenizers may ignore case, accents and spaces.",
            )


def _limit_length(
    rows: list[list[int]], labels: Sequence[str], limit: int, template: Template, end: list[int], *, truncate: bool
) -> list[list[int]]:
    """Cut rows that are too long before the end tokens, or raise an error."""
    long = [
        f"{shortened(label)} ({len(row)} tokens)" for label, row in zip(labels, rows, strict=True) if len(row) > limit
    ]
    if long and not truncate:
        raise InvalidLabelsError(
            f"Too long under the template {template.text!r}: {listed(long)}; the model reads {limit} tokens.",
            hint="Shorten it or the prompt, or let it be cut off (on_long_label 'truncate') with context words "
            "before the name.",
        )
    if long:
        warnings.warn(f"Cut to the model's {limit} tokens: {'; '.join(long)}.", UserWarning, stacklevel=3)
    return [row[: limit - len(end)] + end if len(row) > limit else row for row in rows]


def _first_slots(slots: list[list[int]], tokens: int | None) -> list[list[int]]:
    available = len(slots[0])
    if tokens is not None and not (isinstance(tokens, int) and 1 <= tokens <= available):
        raise InvalidOptionError(
            f"tokens={tokens!r} is not accepted.",
            hint=f"The template's context has {available} tokens: give 1..{available}.",
        )
    return [row[:tokens] for row in slots]
