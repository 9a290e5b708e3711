"""Why a zero-shot accuracy is not the published one: the causes that people report, each looked for in the run itself.

A cause is *found* (there is evidence), *excluded* (it was looked for, and is not there) or *possible* (it can't be seen
from here).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from poise.data import catalog
from poise.report.records.groups import Group
from poise.text import counted
from poise.types import DualEncoder, ImageSpec

State = Literal["found", "possible", "excluded"]
CLIP_IMAGES = ImageSpec(224, (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_MORE = 0.1  # accuracy that another order of classes must add on held-out images


@dataclass(frozen=True)
class Cause:
    """A likely cause of a wrong number, and what speaks for it."""

    name: str
    state: State
    evidence: str


def causes(encoder: DualEncoder, group: Group, facts: dict[str, Any]) -> list[Cause]:
    """Return the causes, those that were found first.

    Args:
        encoder: the model.
        group: the zero-shot answers on a dataset.
        facts: the dataset's entry in the header of the run.
    """
    every = [
        _activation(encoder),
        _template(group, facts),
        _class_order(group),
        _split(group.dataset, facts),
        _resize(encoder.image),
    ]
    order = ("found", "possible", "excluded")
    return sorted(every, key=lambda cause: order.index(cause.state))


def _activation(encoder: DualEncoder) -> Cause:
    quick = getattr(encoder, "quick_gelu", None)
    if quick is None:
        return Cause("QuickGELU", "possible", "the model does not say which activation it computes")
    if quick:
        return Cause("QuickGELU", "excluded", "the model computes QuickGELU, as OpenAI's weights need it")
    return Cause("QuickGELU", "found", "the model computes GELU; OpenAI's weights were trained with QuickGELU")


def _template(group: Group, facts: dict[str, Any]) -> Cause:
    used = str(group.setting.values.get("template") or facts.get("template", ""))
    known = catalog.row(group.dataset).template if group.dataset in catalog.datasets else used
    if used == known:
        return Cause("template", "excluded", f"it is the published one, {used!r}")
    return Cause("template", "found", f"it is {used!r}; the published numbers are of {known!r}")


def _class_order(group: Group) -> Cause:
    """Another one-to-one order of the classes, chosen on half of the images, must not be better on the other half."""
    rows = next(iter(group.seeds.values()))
    labels, predictions = rows["label"].astype(int), rows["prediction"].astype(int)
    order = np.random.default_rng(0).permutation(len(labels))
    chosen, held_out = order[::2], order[1::2]
    classes = 1 + int(max(labels.max(), predictions.max()))
    votes = np.zeros((classes, classes))
    np.add.at(votes, (predictions[chosen], labels[chosen]), 1)
    votes += 0.5 * np.eye(classes)  # without evidence a class stays where it is
    mapped = linear_sum_assignment(-votes)[1][predictions[held_out]]
    if not len(held_out):
        return Cause("class order", "possible", "too few images to tell")
    before, after = ((found == labels[held_out]).mean() for found in (predictions[held_out], mapped))
    if after > before + _MORE:
        return Cause(
            "class order",
            "found",
            f"with classes in another order, the accuracy on held-out images is {after:.1%} instead of {before:.1%}",
        )
    return Cause("class order", "excluded", "no other order of the classes is better")


def _split(dataset: str, facts: dict[str, Any]) -> Cause:
    if dataset not in catalog.datasets:
        return Cause("split", "possible", "nothing is published about the split")
    expected, there = catalog.row(dataset).images, int(facts.get("available", facts.get("images", 0)))
    if there != expected:
        return Cause("split", "found", f"{counted(there, 'image')}; the published test split has {expected}")
    return Cause("split", "possible", "the number of images is right; whether they are the test images can't be seen")


def _resize(spec: ImageSpec) -> Cause:
    names = ("size", "mean", "std", "interpolation", "resize")
    wrong = [
        f"{name} is {getattr(spec, name)}, not {getattr(CLIP_IMAGES, name)}"
        for name in names
        if not _same(getattr(spec, name), getattr(CLIP_IMAGES, name))
    ]
    if wrong:
        return Cause("resize", "found", "; ".join(wrong))
    return Cause("resize", "excluded", "images are resized, cropped and normalised as CLIP's are")


def _same(ours: Any, theirs: Any) -> bool:
    return bool(np.allclose(ours, theirs, atol=1e-4)) if isinstance(theirs, tuple) else bool(ours == theirs)
