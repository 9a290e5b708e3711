"""Groups of labels: a softmax inside each group, and the image read and encoded once for all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidLabelsError
from poise.prompts.labels import BAR, check_labels, listed
from poise.results import Result
from poise.text import as_words
from poise.tuning import AnyTuner
from poise.types import Answer

Groups = dict[str, tuple[str, ...]]  # the labels of each group, by its name


def find_groups(labels: Sequence[str] | Mapping[str, Sequence[str]], groups: Sequence[str], fewest: int) -> Groups:
    """Return the labels of each group; {} if there are none.

    Args:
        labels: of all groups, or by the name of the group.
        groups: the name of each label's group; () if ``labels`` has them, or if there are none.
        fewest: labels that a group needs.
    """
    if isinstance(labels, Mapping):
        found = {str(name): tuple(members) for name, members in labels.items()}
    elif groups:
        if len(groups) != len(labels):
            raise InvalidLabelsError(
                f"There are {len(groups)} names of groups for {len(labels)} labels.", hint="Give one for each label."
            )
        found = {name: tuple(x for x, y in zip(labels, groups, strict=True) if y == name) for name in groups}
    else:
        return {}
    places: dict[str, list[str]] = {}
    for name, members in found.items():
        for label in check_labels(members, fewest=fewest):
            places.setdefault(as_words(label), []).append(name)
    if twice := [f"'{label}' in {' and '.join(names)}" for label, names in places.items() if len(names) > 1]:
        raise InvalidLabelsError(f"Labels are in two groups: {listed(twice)}.", hint="Give each label once.")
    return found


class GroupedTuner:
    """The tuners of several groups as one: the answers of each have the keys of `key_of`."""

    def __init__(self, parts: Mapping[str, AnyTuner]) -> None:
        self.parts = dict(parts)

    @property
    def first(self) -> AnyTuner:
        """The tuner of the first group; what they share is read off it."""
        return next(iter(self.parts.values()))

    @property
    def reads(self) -> str:
        """The input of `predict`."""
        return self.first.reads

    @property
    def ordered(self) -> bool:
        """Whether answers depend on the images before."""
        return self.first.ordered

    @property
    def texts(self) -> ClassTexts:
        """The class texts of the first group."""
        return self.first.texts

    def predict(self, inputs: Tensor, /) -> dict[str, Answer[Tensor]]:
        """Return each method's answers for each group."""
        return {
            key_of(name, method): answer
            for name, part in self.parts.items()
            for method, answer in part.predict(inputs).items()
        }


def key_of(group: str, method: str) -> str:
    """Return the key of a method's answer for one group."""
    return f"{group}\n{method}"


def joined(parts: Mapping[str, Result]) -> Result:
    """Return one result from those of the groups, which are taken as independent.

    The label has the labels of all groups, the confidence is the product of theirs, and the entropy the sum.
    """
    results, first = list(parts.values()), next(iter(parts.values()))
    probs = {label: prob for result in results for label, prob in result.probabilities.items()}
    return Result(
        label=BAR.join(result.label for result in results),
        confidence=float(np.prod([result.confidence for result in results])),
        probabilities=dict(sorted(probs.items(), key=lambda item: -item[1])),
        entropy=math.fsum(result.entropy for result in results),
        margin=min(result.margin for result in results),
        method=first.method,
        source=first.source,
        fallback=any(result.fallback for result in results),
        degenerate=any(result.degenerate for result in results),
        match=min(result.match for result in results),
        notes=tuple(dict.fromkeys(note for result in results for note in result.notes)),
        groups=dict(parts),
    )
