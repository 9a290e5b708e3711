"""How independent labels do on labelled images that they were not calibrated on."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poise.calibration.evaluation import proportion
from poise.metrics import Interval, Sample, get
from poise.metrics.bootstrap import mean_interval
from poise.metrics.sample import Bools, Floats
from poise.metrics.scoring import average_precision
from poise.text import counted


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
        left_out: images of the calibration that were left out.
    """

    labels: tuple[str, ...]
    probs: Floats
    truth: Bools
    outcomes: NDArray[Any] | None = None  # of texts; Sphinx takes the name of their type for a reference
    precision: float | None = None
    recall: float | None = None
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.probs)

    def metrics(self) -> dict[str, float | Interval]:
        """Return the metrics by name; class-wise ECE, its floor and mAP are means over labels with an image."""
        present = [at for at in range(len(self.labels)) if self.truth[:, at].any()]
        samples = [Sample.of_top(self.probs[:, at], self.truth[:, at]) for at in range(len(self.labels))]
        found: dict[str, float | Interval] = {
            "map": float(np.mean([average_precision(self.probs[:, at], self.truth[:, at]) for at in present])),
            "classwise_ece": float(np.mean([get("ece").value(sample) for sample in samples])),
            "classwise_ece_floor": float(np.mean([get("ece_floor").value(sample) for sample in samples])),
            "brier": mean_interval(((self.probs - self.truth) ** 2).mean(1)),
        }
        if self.outcomes is not None:
            yes, no = self.outcomes == "yes", self.outcomes == "no"
            found["yes"], found["no"] = float(yes.mean()), float(no.mean())
            found["unsure"] = float((self.outcomes == "unsure").mean())
        return found

    def by_label(self) -> dict[str, dict[str, Interval]]:
        """Return precision and recall of each label's outcomes, with exact 95 % intervals, where there are any."""
        found: dict[str, dict[str, Interval]] = {}
        if self.outcomes is None:
            return found
        for at, label in enumerate(self.labels):
            yes, no, has = self.outcomes[:, at] == "yes", self.outcomes[:, at] == "no", self.truth[:, at]
            row = {}
            if yes.any():
                row["precision"] = proportion(int((yes & has).sum()), int(yes.sum()))
            if has.any():
                row["recall"] = proportion(int((~no & has).sum()), int(has.sum()))
            found[label] = row
        return found

    @property
    def methods(self) -> tuple[str, ...]:
        """The only one."""
        return ("zero-shot",)

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return a title and a text for each metric, as `Evaluation` does."""
        rows = []
        for name, value in self.metrics().items():
            if isinstance(value, float):
                rows.append((_TITLES[name], [f"{100 * value:.1f} %"]))
            else:
                rows.append((_TITLES[name], [f"{value.value:.4f} ({value.low:.4f} to {value.high:.4f})"]))
        return rows

    def notes(self) -> list[str]:
        """Return what the numbers mean."""
        notes = [f"Left out: {self.left_out} that the calibration was made with."] if self.left_out else []
        for name, level in (("precision", self.precision), ("recall", self.recall)):
            if level is not None:
                below = [label for label, row in self.by_label().items() if name in row and row[name].high < level]
                notes.append(
                    f"Certified {name} of each label: {100 * level:g} %. Clearly below it on these images: "
                    f"{counted(len(below), 'label')}{': ' + ', '.join(below[:5]) if below else ''}."
                )
        return notes

    def summary(self) -> str:
        """Return the metrics as text."""
        width = max(len(title) for title, _ in self.rows())
        head = f"{counted(len(self), 'image')}, {counted(len(self.labels), 'label')}, which apply independently"
        return "\n".join([head, *(f"{title:<{width}}  {texts[0]}" for title, texts in self.rows()), *self.notes()])

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "images": len(self),
            "left_out": self.left_out,
            "precision": self.precision,
            "recall": self.recall,
            "metrics": {
                name: value if isinstance(value, float) else dict(zip(Interval._fields, value, strict=True))
                for name, value in self.metrics().items()
            },
            "labels": {
                label: {name: dict(zip(Interval._fields, value, strict=True)) for name, value in row.items()}
                for label, row in self.by_label().items()
            },
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(title)}</th><td>{escape(texts[0])}</td></tr>"
            for title, texts in self.rows()
        )
        return f"<table>{rows}</table>" + "".join(f"<p>{escape(note)}</p>" for note in self.notes())


_TITLES = {
    "map": "Mean average precision",
    "classwise_ece": "Class-wise ECE",
    "classwise_ece_floor": "  of perfect probabilities",
    "brier": "Brier score per label",
    "yes": "Answered with yes",
    "no": "Answered with no",
    "unsure": "Unsure",
}
