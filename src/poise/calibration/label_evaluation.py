"""How independent labels do on labelled images that they were not calibrated on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poise.calibration.certify import upper_bound
from poise.calibration.independent import WORDS
from poise.calibration.plots import outcomes_svg, reliability_svg
from poise.calibration.shares import proportion
from poise.metrics import Interval, Sample, available, equal_width, estimate
from poise.metrics.sample import Bools, Floats
from poise.results import Failure
from poise.text import counted

_CODES = {word: code for code, word in WORDS.items()}
_SHOWN = 40  # labels in a figure
_TITLES = {
    "map": "Mean average precision",
    "label_ece": "ECE per label",
    "label_ece_floor": "  of perfect probabilities",
    "label_brier": "Brier score per label",
    "yes": "Answered with yes",
    "no": "Answered with no",
    "precision": "Right among all yes",
    "recall": "Labels that apply and get no 'no'",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelEvaluation:
    """Probabilities and outcomes of N images for C independent labels.

    Attributes:
        labels: their names.
        probs: calibrated probabilities [N, C].
        truth: whether each image has each label [N, C].
        outcomes: "yes", "no" or "unsure" [N, C]; None if none were asked for.
        precision: that the yes was certified for.
        recall: that the no was certified for.
        left_out: how many images were left out, by reason.
        failures: images without an answer.
    """

    labels: tuple[str, ...]
    probs: Floats
    truth: Bools
    outcomes: NDArray[Any] | None = None  # of texts; Sphinx takes the name of their type for a reference
    precision: float | None = None
    recall: float | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.probs)

    def sample(self) -> Sample:
        """Return what metrics read."""
        said = None if self.outcomes is None else np.vectorize(_CODES.get, otypes=[np.int64])(self.outcomes)
        return Sample.of_independent(self.probs, self.truth, said)

    def metrics(self) -> dict[str, Interval]:
        """Return the metrics with 95 % bootstrap intervals over images, by name (`poise list metrics`)."""
        sample = self.sample()
        names = [name for name in available(sample) if name in _TITLES]
        return {name: found.interval for name, found in estimate([sample], names=names).items()}

    def by_label(self) -> dict[str, dict[str, Interval]]:
        """Return precision and recall of each label's outcomes, with exact 95 % intervals, where there are any."""
        found: dict[str, dict[str, Interval]] = {label: {} for label in self.labels} if self.counts() else {}
        for name, pairs in self.counts().items():
            for label, (hits, images) in zip(self.labels, pairs, strict=True):
                if images:
                    found[label][name] = proportion(hits, images)
        return found

    def counts(self) -> dict[str, list[tuple[int, int]]]:
        """Return, for precision and recall, how many of how many images are right for each label."""
        if self.outcomes is None:
            return {}
        yes, no = self.outcomes == "yes", self.outcomes == "no"
        parts = {"precision": (yes & self.truth, yes), "recall": (~no & self.truth, self.truth)}
        return {
            name: list(zip(right.sum(0).tolist(), among.sum(0).tolist(), strict=True))
            for name, (right, among) in parts.items()
        }

    @property
    def methods(self) -> tuple[str, ...]:
        """The only one."""
        return ("zero-shot",)

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return a title and a text for each metric, as `Evaluation` does."""
        return [(_TITLES[name], [_text(value, score=name == "label_brier")]) for name, value in self.metrics().items()]

    def label_rows(self) -> list[list[str]]:
        """Return each label with its number of images, and its precision and recall; none without outcomes."""
        return [
            [label, str(images), *(_text(row[name]) if name in row else "" for name in ("precision", "recall"))]
            for (label, row), images in zip(self.by_label().items(), self.truth.sum(0), strict=False)
        ]

    def notes(self) -> list[str]:
        """Return what the numbers mean, and which images were left out."""
        notes = [f"Left out: {number} {reason}." for reason, number in self.left_out.items() if number]
        for name, level in (("precision", self.precision), ("recall", self.recall)):
            if level is not None:
                below = self._below(name, level)
                notes.append(
                    f"Certified {name} of each label: at least {100 * level:g} %. Clearly below it on these images: "
                    f"{counted(len(below), 'label')}{': ' + ', '.join(below[:5]) if below else ''}."
                )
        return [*notes, "In parentheses: 95 % confidence intervals; exact for single labels, else by bootstrap."]

    def _below(self, name: str, level: float) -> list[str]:
        """Return the labels whose share is below the level by an exact test; all labels share its error of 5 %."""
        pairs = zip(self.labels, self.counts().get(name, ()), strict=True)
        delta = 0.05 / len(self.labels)
        return [label for label, (hits, images) in pairs if images and upper_bound(hits, images, delta) < level]

    def summary(self) -> str:
        """Return the metrics as text."""
        width = max(len(title) for title, _ in self.rows())
        head = f"{counted(len(self), 'image')}, {counted(len(self.labels), 'label')}, which apply independently"
        return "\n".join([head, *(f"{title:<{width}}  {texts[0]}" for title, texts in self.rows()), *self.notes()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "images": len(self),
            "left_out": dict(self.left_out),
            "precision": self.precision,
            "recall": self.recall,
            "failures": [{"source": failure.source, "message": failure.message} for failure in self.failures],
            "metrics": {name: value._asdict() for name, value in self.metrics().items()},
            "labels": {
                label: {name: value._asdict() for name, value in row.items()} for label, row in self.by_label().items()
            },
        }

    def figures(self) -> str:
        """Return how often labels apply by their probability, and what is said of each label, as HTML."""
        bins = equal_width(self.probs.ravel(), self.truth.ravel(), 10)
        drawn = (
            f"<figure>{reliability_svg({'all labels': bins}, axes=('probability', 'applies'))}<figcaption>How often "
            "labels apply, by their probability. Calibrated probabilities are on the diagonal.</figcaption></figure>"
        )
        if self.outcomes is not None:
            shown = self.labels[:_SHOWN]
            shares = {word: (self.outcomes == word).mean(0)[:_SHOWN].tolist() for word in _CODES}
            more = f" The first {_SHOWN} of {len(self.labels)} labels." if len(self.labels) > _SHOWN else ""
            drawn += (
                f"<figure class='wide'>{outcomes_svg(shown, shares)}<figcaption>What is said of each label, as a share "
                f"of the images.{more}</figcaption></figure>"
            )
        return drawn

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        caption = f"<caption>{counted(len(self), 'image')}</caption>"
        table = "".join(_line(title, texts) for title, texts in self.rows())
        by_label = ""
        if rows := self.label_rows():
            head = (
                "<tr><th>Label</th><th>Images</th><th>Precision of the yes</th><th>Applies and gets no 'no'</th></tr>"
            )
            by_label = f"<table>{head}{''.join(_line(label, texts) for label, *texts in rows)}</table>"
        return f"<table>{caption}{table}</table>{notes}{self.figures()}{by_label}"


def _line(title: str, texts: list[str]) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
    return f"<tr><th style='text-align:left'>{escape(title)}</th>{cells}</tr>"


def _text(value: Interval, *, score: bool = False) -> str:
    if score:
        return f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"
    return f"{100 * value.value:.1f} % ({100 * value.low:.1f} to {100 * value.high:.1f})"
