"""How a calibrated classifier does on labelled images that it was not calibrated on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

from poise.calibration.mistakes import Listing, answers, confusions, label_counts, listings, mistakes
from poise.calibration.plots import outcomes_svg, reliability_svg, risk_svg
from poise.calibration.shares import proportion
from poise.errors import InvalidOptionError
from poise.metrics import Bins, Interval, Sample, equal_width, estimate, gap_p_value, get
from poise.metrics.sample import Bools, Floats, Ints
from poise.metrics.selective import risk_coverage
from poise.metrics.unlabelled import FEWEST, MISTAKES, accuracy_with_unlabelled, enough
from poise.results import Failure
from poise.text import counted

LISTED = 50  # rows of each list on a page
_UPRIGHT = "; the upright line is the share that was"
_PROPORTIONS = ("accuracy", "accuracy_unlabelled", "answered", "answered_error", "coverage")
_TITLES = {
    "accuracy": "Accuracy",
    "accuracy_unlabelled": "Accuracy, with unlabelled images",
    "answered": "Answered",
    "answered_error": "Wrong among the answered",
    "depth": "Depth of the answers",
    "height": "Steps up to a common node",
    "coverage": "Sets that contain the label",
    "set_size": "Labels per set",
    "ece": "ECE",
    "ece_floor": "Finite-sample floor of ECE",
    "raw_ece": "ECE before calibration",
    "gap": "Mean confidence minus accuracy",
    "nll": "NLL",
    "brier": "Brier score",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Answered:
    """One method's answers for N labelled images.

    Attributes:
        probs: calibrated probabilities [N, C].
        raw: confidence before calibration [N].
        labels: correct classes [N].
        set_sizes: labels of each prediction set [N]; None without sets.
        covered: whether the set contains the correct label [N]; None without sets.
        answered: whether the image is answered [N]; None without decisions.
        height: with a tree, how many steps above the labels the predicted and the correct one meet [N]; else None.
        depth: with a tree and decisions, how many nodes the answer has from the root [N]; else None.
        right: with a tree and decisions, whether the answer contains the correct label [N]; else None.
        unlabelled: calibrated confidences of further images [M] without labels, drawn alike; None without any.
    """

    probs: Floats
    raw: Floats
    labels: Ints
    set_sizes: Ints | None = None
    covered: Bools | None = None
    answered: Bools | None = None
    height: Ints | None = None
    depth: Ints | None = None
    right: Bools | None = None
    unlabelled: Floats | None = None

    def __post_init__(self) -> None:
        if not len(self.labels):
            raise InvalidOptionError("There are no images to evaluate on.", hint="Give labelled images.")

    @property
    def correct(self) -> Bools:
        """Whether each prediction is correct [N]."""
        return np.asarray(self.probs.argmax(1) == self.labels)

    def metrics(self) -> dict[str, Interval]:
        """Return the metrics with 95 % confidence intervals, by name.

        The intervals of shares are exact (Clopper-Pearson), the others are bootstrap intervals over images.
        """
        parts = {name: getattr(self, name) for name in ("set_sizes", "covered", "height", "depth", "right")}
        sample = replace(Sample.of(self.probs, self.labels), **parts)
        names = ["ece", "ece_floor", "gap", "nll", "brier"]
        names += [name for name in ("set_size", "height", "depth") if get(name).available(sample)]
        found = {"accuracy": proportion(int(self.correct.sum()), len(self.labels))}
        if self.unlabelled is not None and self.sharpened:
            known = accuracy_with_unlabelled(self.probs.max(1), self.correct, self.unlabelled)
            found["accuracy_unlabelled"] = Interval(*known)
        if self.answered is not None:
            right = self.correct if self.right is None else self.right
            wrong = int((self.answered & ~right).sum())
            found["answered"] = proportion(int(self.answered.sum()), len(self.answered))
            if self.answered.any():
                found["answered_error"] = proportion(wrong, int(self.answered.sum()))
        if self.covered is not None:
            found["coverage"] = proportion(int(self.covered.sum()), len(self.covered))
        found |= {name: value.interval for name, value in estimate([sample], names=names).items()}
        raw = estimate([Sample.of_top(self.raw, self.correct)], names=["ece"])["ece"].interval
        return found | {"raw_ece": raw}

    @property
    def sharpened(self) -> bool:
        """Whether unlabelled images sharpen the accuracy; that needs some right and some wrong answers."""
        return self.unlabelled is not None and len(self.unlabelled) > 0 and enough(self.correct)

    @property
    def gap_p(self) -> float:
        """Exact p-value of "every calibrated confidence is right" (`poise.metrics.gap_p_value`)."""
        return gap_p_value(self.probs.max(1), self.correct)

    def reliability(self, bins: int = 10) -> dict[str, Bins]:
        """Return how often answers are right by confidence, before and after calibration."""
        parts = {"before": self.raw, "after": self.probs.max(1)}
        return {name: equal_width(confidence, self.correct, bins) for name, confidence in parts.items()}

    def by_depth(self) -> dict[str, list[float]]:
        """Return the shares of images with right and wrong answers at each depth in the tree, from 1; {} without."""
        if self.depth is None or self.right is None:
            return {}
        depths = range(1, int(self.depth.max(initial=0)) + 1)
        kinds = {"right": self.right, "wrong": ~self.right}
        return {name: [float((kind & (self.depth == at)).mean()) for at in depths] for name, kind in kinds.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """What labelled images that were not used for the calibration say about a calibrated classifier.

    `Classifier.evaluate` and `poise evaluate` make it.

    Attributes:
        methods: the answers, by name of the method.
        coverage: of the prediction sets; None without sets.
        max_error: certified share of wrong answers; None without decisions.
        confidence: with which the certified share holds.
        left_out: how many images were left out, by reason.
        labels: of the classifier, in order.
        sources: the path of each image, or what stands for it.
        failures: images without an answer.
        copies: how many images look like calibration images, resized or encoded again; they are not left out.
    """

    methods: Mapping[str, Answered]
    coverage: float | None
    max_error: float | None
    confidence: float
    left_out: Mapping[str, int]
    labels: tuple[str, ...]
    sources: tuple[str, ...]
    failures: tuple[Failure, ...] = ()
    copies: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.methods.values())).labels)

    def metrics(self) -> dict[str, dict[str, Interval]]:
        """Return the metrics with 95 % confidence intervals, by method and name."""
        return {name: part.metrics() for name, part in self.methods.items()}

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return a title and one text per method for each metric."""
        found = self.metrics()
        names = [name for name in _TITLES if any(name in part for part in found.values())]
        return [(self._title(name), [self._text(name, *each) for each in found.items()]) for name in names]

    def notes(self) -> list[str]:
        """Return what the numbers mean, and which images were left out."""
        notes = [f"Left out: {number} {reason}." for reason, number in self.left_out.items() if number]
        if self.copies:
            notes.append(
                f"Maybe calibration images in another size or encoding: {counted(self.copies, 'image')}. If so, leave "
                "them out: numbers are too good with them."
            )
        if self.max_error is not None:
            promised = f"{100 * self.max_error:g} %"
            notes.append(
                f"With {100 * self.confidence:.4g} % confidence, at most {promised} of the answers to images like the "
                "calibration images are wrong. An interval that lies above that means that these images are not like "
                "them, or that the calibration is one of those for which the promise fails."
            )
        if self.coverage is not None:
            notes.append(
                f"Sets were made to contain the label for {100 * self.coverage:g} % of images like the calibration "
                "images, on average."
            )
        notes += [f"{name}: {_help(part)}." for name, part in self.methods.items() if part.unlabelled is not None]
        notes.append(
            "p: how probable such a difference of mean confidence and accuracy is, on either side, if every confidence "
            "is right (exact)."
        )
        notes.append("In parentheses: 95 % confidence intervals; exact for shares, else by bootstrap over images.")
        return notes

    def summary(self) -> str:
        """Return the metrics as text."""
        width = max(len(title) for title, _ in self.rows())
        lines = [f"{counted(len(self), 'image')}; methods: {', '.join(self.methods)}"]
        lines += [f"{title:<{width}}  {'  '.join(texts)}" for title, texts in self.rows()]
        return "\n".join([*lines, *self.notes()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "images": len(self),
            "left_out": dict(self.left_out),
            "copies": self.copies,
            "coverage": self.coverage,
            "max_error": self.max_error,
            "methods": {
                name: {metric: dict(zip(Interval._fields, value, strict=True)) for metric, value in part.items()}
                for name, part in self.metrics().items()
            },
            "gap_p": {name: part.gap_p for name, part in self.methods.items()},
            "failures": [{"source": failure.source, "message": failure.message} for failure in self.failures],
            "by_label": {
                name: [
                    {"label": label, "images": images, "correct": right}
                    for label, images, right in label_counts(part, self.labels)
                ]
                for name, part in self.methods.items()
            },
            "confusions": {
                name: [
                    {"label": truth, "answer": answer, "images": number}
                    for truth, answer, number in confusions(part, self.labels)
                ]
                for name, part in self.methods.items()
            },
            "mistakes": {name: mistakes(part, self.labels, self.sources) for name, part in self.methods.items()},
        }

    def listings(self, method: str, limit: int) -> list[Listing]:
        """Return accuracy by label, confused labels and wrong images of a method, at most ``limit`` of each."""
        return listings(self.methods[method], self.labels, self.sources, limit)

    def answers(self) -> list[dict[str, Any]]:
        """Return one row per method and image: its label, the answer, the confidence and whether it is correct."""
        return [
            {"method": name, **row}
            for name, part in self.methods.items()
            for row in answers(part, self.labels, self.sources)
        ]

    def figures(self) -> str:
        """Return a reliability diagram and the errors among the surest answers, for each method, as HTML."""
        return "".join(
            f"<figure>{reliability_svg(part.reliability())}<figcaption>{escape(name)}: accuracy by confidence, before "
            "and after calibration. Calibrated answers are on the diagonal.</figcaption></figure>"
            f"<figure>{self._risks(part)}<figcaption>{escape(name)}: wrong answers, if only the surest images are "
            f"answered{_UPRIGHT if _of_labels(part) else ''}.</figcaption></figure>{_depths(name, part)}"
            for name, part in self.methods.items()
        )

    def _risks(self, part: Answered) -> str:
        curve = risk_coverage(part.raw, part.correct)
        if part.answered is None or not _of_labels(part):
            return risk_svg(curve)
        return risk_svg(curve, self.max_error, float(part.answered.mean()))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in self.methods)
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(title)}</th>"
            + "".join(f"<td>{escape(text)}</td>" for text in texts)
            + "</tr>"
            for title, texts in self.rows()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes())
        caption = f"<caption>{counted(len(self), 'image')}</caption>"
        return f"<table>{caption}<tr><th></th>{head}</tr>{rows}</table>{notes}{self.figures()}{self._lists()}"

    def _lists(self) -> str:
        """Return the lists of mistakes of each method as HTML."""
        return "".join(
            f"<h2>{escape(name)}: {escape(each.title)}</h2><table><tr>{_cells('th', each.headings)}</tr>"
            + "".join(f"<tr>{_cells('td', row)}</tr>" for row in each.rows)
            + "</table>"
            for name in self.methods
            for each in self.listings(name, LISTED)
        )

    def _text(self, name: str, method: str, found: Mapping[str, Interval]) -> str:
        if name not in found:
            return ""
        value, low, high = found[name]
        if name == "gap":
            p = self.methods[method].gap_p
            return f"{100 * value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f}), p {p:.2g}"
        if name in (*_PROPORTIONS, "ece", "ece_floor", "raw_ece"):
            return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        digits = 2 if name in ("set_size", "depth", "height") else 3
        return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"

    def _title(self, name: str) -> str:
        if name == "set_size" and any(part.height is not None for part in self.methods.values()):
            return "Nodes per set"
        wanted = {"answered_error": self.max_error, "coverage": self.coverage}.get(name)
        if wanted is None:
            return _TITLES[name]
        return f"{_TITLES[name]} (promised: at {'most' if name == 'answered_error' else 'least'} {100 * wanted:g} %)"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _of_labels(part: Answered) -> bool:
    """Whether images are answered with labels, rather than with nodes of a tree."""
    return part.answered is not None and part.depth is None


def _depths(name: str, part: Answered) -> str:
    """Return the answers by their depth in the tree; "" without any."""
    shares = part.by_depth()
    if not shares or part.answered is None or not part.answered.any():
        return ""
    none = 1 - float(part.answered.mean())
    rows = [f"depth {at}" for at in range(1, len(shares["right"]) + 1)]
    drawn = {**{kind: [*values, 0.0] for kind, values in shares.items()}, "no answer": [*[0.0] * len(rows), none]}
    return (
        f"<figure class='wide'>{outcomes_svg([*rows, 'none'], drawn)}<figcaption>{escape(name)}: shares of the images "
        "by the depth of their answer in the tree.</figcaption></figure>"
    )


def _help(part: Answered) -> str:
    """Return how unlabelled images helped."""
    number = 0 if part.unlabelled is None else len(part.unlabelled)
    if part.sharpened:
        return f"the second accuracy also uses the confidences of {counted(number, 'image')} without labels (PPI++)"
    return (
        f"{counted(number, 'image')} without labels do not help: {FEWEST} labels, with {MISTAKES} right and {MISTAKES} "
        "wrong answers, are needed"
    )
