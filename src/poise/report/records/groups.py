"""What reports read: the rows of one method on one dataset under one setting."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from poise.calibration import Certificate
from poise.metrics import Sample
from poise.metrics.sample import in_top

# What may differ between two runs that are still the same experiment: which part of it was run, and how fast.
NOT_A_SETTING = frozenset({"datasets", "methods", "seeds", "limit", "batch_size", "chunk", "device", "model"})
SCALARS = (
    "label",
    "prediction",
    "confidence",
    "entropy",
    "correct",
    "init_prediction",
    "init_confidence",
    "init_entropy",
    "target_prediction",
    "atfd",
    "init_atfd",
    "fallback",
)
DECIDED = ("set_sizes", "covered", "answered", "height", "depth", "right")  # of calibrated methods, and of trees


@dataclass(frozen=True, order=True)
class Setting:
    """What is the same for all methods that are compared: the model, and every choice that changes numbers."""

    model: str
    choices: str = ""  # canonical JSON of the run's configuration without NOT_A_SETTING
    init: str = "template"  # the kind of prompt that tuning starts from

    @classmethod
    def of(cls, header: dict[str, Any]) -> Setting:
        """Return the setting of the run with this header."""
        config = header.get("config", {})
        choices = {key: value for key, value in config.items() if key not in NOT_A_SETTING}
        init = str(header.get("init_kind", choices.get("init", "template")))
        return cls(str(config.get("model", "")), json.dumps(choices, sort_keys=True), init)

    @property
    def values(self) -> dict[str, Any]:
        """The choices by name."""
        return dict(json.loads(self.choices or "{}"))

    @property
    def framework(self) -> str:
        """How images relate to each other, such as ``tpt`` or ``dynaprompt``."""
        return str(self.values.get("framework", "tpt"))


@dataclass(frozen=True)
class SeedRows:
    """The images of one seed, in the order of their ids."""

    ids: tuple[str, ...]
    columns: dict[str, np.ndarray]  # [N] each
    probs: np.ndarray | None  # [N, C]
    top_ids: np.ndarray | None  # [N, K]
    has: np.ndarray | None = None  # [N, C] of independent labels: those that each image has
    logits: np.ndarray | None = None  # [N, C] of independent labels
    outcomes: np.ndarray | None = None  # [N, C] of independent labels that are calibrated

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def sample(self) -> Sample:
        """Return what metrics read. Confidences are the record's float64, not the float32 of the probabilities."""
        labels, probs = self["label"], None if self.probs is None else self.probs.astype(np.float64)
        if self.has is not None:
            confidence, correct = self["confidence"], self["correct"].astype(bool)
            return Sample(confidence, correct, has=self.has, chances=probs, outcomes=self.outcomes)
        top5 = None
        if probs is not None:
            top5 = in_top(probs, labels)
        elif self.top_ids is not None and self.top_ids.shape[1] >= 5:
            top5 = (self.top_ids[:, :5] == labels[:, None]).any(1)
        decided = {name: self.columns.get(name) for name in DECIDED}
        return Sample(self["confidence"], self["correct"].astype(bool), top5, probs, labels, **decided)

    def take(self, positions: np.ndarray) -> SeedRows:
        """Return the images at these positions."""
        tables = (self.probs, self.top_ids, self.has, self.logits, self.outcomes)
        columns = {name: column[positions] for name, column in self.columns.items()}
        ids = tuple(self.ids[position] for position in positions)
        return SeedRows(ids, columns, *(None if part is None else part[positions] for part in tables))


@dataclass(frozen=True)
class SeedCalibration:
    """What the calibration images of one seed gave: the threshold, and the scores behind the sets."""

    certificate: Certificate
    classes: int  # that have at least one calibration image
    scores: np.ndarray  # [n] of the true classes of the calibration images
    other_scores: np.ndarray  # [N] of the true classes of the other images
    confidence: np.ndarray  # [N] of the method as it is, which the threshold is for


@dataclass(frozen=True)
class Group:
    """One method on one dataset under one setting: the same images for every seed."""

    setting: Setting
    dataset: str
    method: str
    seeds: dict[int, SeedRows]
    errors: int = 0  # rows with an error instead of an answer
    uneven: int = 0  # images left out because some seed has no answer for them
    calibration: dict[int, SeedCalibration] | None = None  # of a calibrated method, by seed
    unknown: dict[int, SeedRows] | None = (
        None  # images whose class is not among the labels, by seed; no metric has them
    )

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the images."""
        return next(iter(self.seeds.values())).ids

    @property
    def independent(self) -> bool:
        """Whether any number of the labels may apply to an image."""
        return all(rows.has is not None for rows in self.seeds.values())

    @property
    def n(self) -> int:
        """The number of images."""
        return len(self.ids)

    @cached_property
    def pooled(self) -> dict[str, np.ndarray]:
        """The columns of all seeds, concatenated."""
        return {name: np.concatenate([rows[name] for rows in self.seeds.values()]) for name in SCALARS}

    def split(self) -> Group:
        """Return the group with the images of unknown classes apart."""
        known = {seed: rows["label"] >= 0 for seed, rows in self.seeds.items()}
        if all(mask.all() for mask in known.values()):
            return self
        inside = {seed: rows.take(np.flatnonzero(known[seed])) for seed, rows in self.seeds.items()}
        outside = {seed: rows.take(np.flatnonzero(~known[seed])) for seed, rows in self.seeds.items()}
        return replace(self, seeds=inside, unknown=outside)

    def samples(self) -> list[Sample]:
        """Return one sample per seed."""
        return [rows.sample() for rows in self.seeds.values()]
