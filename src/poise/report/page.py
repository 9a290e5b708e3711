"""One self-contained HTML page with every table and figure of a folder of runs; it needs no network."""

from __future__ import annotations

import html
import json
import math
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.metrics import risk_coverage
from poise.report import published
from poise.report.analyses import Split, analyse
from poise.report.formats import terminal
from poise.report.panels import colour
from poise.report.runs import Group, Records, load
from poise.report.scores import HIGHER_IS_BETTER, IN_PERCENT, TITLES, Scoreboard, Scored, scoreboard, shown
from poise.report.tables import digits, tabulate
from poise.report.tsne import TextFeatures, embed, text_features

CURVE_POINTS = 120
ABOUT = {
    "accuracy": "Share of images whose most probable class is right.",
    "top5": "Share of images whose class is among the five most probable.",
    "ece": "Expected calibration error, 20 equal-width bins (lower, upper].",
    "sce": "Class-wise calibration error, 20 bins, mean over classes.",
    "aece": "Calibration error over 20 bins of equal mass.",
    "mce": "Largest gap of a bin.",
    "nll": "Negative log-likelihood in nats.",
    "brier": "Multi-class Brier score, 0 to 2.",
    "aurc": "Area under the risk-coverage curve.",
}


def write_page(
    runs: str | Path | Records, out: str | Path, *, title: str = "Calibration benchmark", resamples: int = 1000
) -> Path:
    """Write the page to the file ``out`` (or to ``out/index.html`` where ``out`` is a folder)."""
    records = runs if isinstance(runs, Records) else load(runs)
    path = Path(out)
    path = path / "index.html" if path.is_dir() or not path.suffix else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(scoreboard(records, resamples=resamples), title), encoding="utf-8")
    return path


def page_html(board: Scoreboard, title: str = "Calibration benchmark") -> str:
    """The page as one string."""
    assets = files("poise.report") / "assets"
    text = (assets / "page.html").read_text("utf-8")
    # no name or label can end the script element or open a comment in it
    data = json.dumps(page_data(board), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    parts = {
        "TITLE": html.escape(title),
        "CSS": (assets / "page.css").read_text("utf-8"),
        "JS": "".join((assets / name).read_text("utf-8") for name in ("charts.js", "page.js")),
        "PLAIN": html.escape(terminal(tabulate(board))),
        "DATA": data,
    }
    return re.sub("@@([A-Z]+)@@", lambda mark: parts[mark[1]], text)


def page_data(board: Scoreboard) -> dict[str, Any]:
    """Everything the page draws, as plain JSON values."""
    records = board.records
    metrics = [name for name in TITLES if any(name in entry.scores for entry in board.entries.values())]
    texts, texts_note = _texts(records)
    return {
        "lead": _lead(records),
        "settings": [{"label": records.label(each), "framework": each.framework, "init": each.init}
                     for each in records.settings],
        "datasets": [{"name": name, "heading": published.HEADINGS.get(name, name)} for name in _ordered(records)],
        "methods": [{"name": name, "colour": colour(name)} for name in records.methods],
        "metrics": [{"name": name, "title": TITLES[name], "higher": name in HIGHER_IS_BETTER, "digits": digits(name),
                     "unit": "%" if name in IN_PERCENT else "", "about": ABOUT[name]} for name in metrics],
        "groups": [_group(records, entry) for entry in board.entries.values()],
        "published": [{"table": row.table, "method": row.method, "metric": row.metric, "framework": row.framework,
                       "init": row.init, "values": row.values, "average": row.average} for row in published.ROWS],
        "notes": [*dict.fromkeys(note for table in tabulate(board) for note in table.notes)],
        "texts": texts,
        "texts_note": texts_note,
        "runs": [_run(header) for header in records.headers.values()],
    }  # fmt: skip


def _lead(records: Records) -> str:
    models = list(dict.fromkeys(setting.model for setting in records.settings))
    images = sum(next(records.chosen(dataset=name)).n for name in records.datasets)
    return (
        f"{', '.join(models)}; {_count(len(records.datasets), 'dataset')} with {_count(images, 'image')}, "
        f"{_count(len(records.methods), 'method')}: accuracy, and how far confidence can be trusted. "
        f"Small grey numbers are 95 % intervals, and the paper's values with {published.MODEL} where it has them."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ordered(records: Records) -> list[str]:
    known = [name for name in (*published.FINE_GRAINED, *published.IMAGENET) if name in records.datasets]
    return [*known, *(name for name in records.datasets if name not in known)]


def _group(records: Records, entry: Scored) -> dict[str, Any]:
    group, found = entry.group, analyse(entry.group)
    intervals = {name: score.interval for name, score in entry.scores.items()}
    return {
        "setting": records.settings.index(group.setting),
        "dataset": group.dataset,
        "method": group.method,
        "n": group.n,
        "seeds": list(group.seeds),
        "metrics": {name: [round(shown(name, value), 6) for value in (each.value, each.low, each.high)]
                    for name, each in intervals.items()},
        "bins": [[_short(row[key]) for key in ("lo", "hi", "n", "acc", "conf")] for row in entry.bins.rows()],
        "histogram": _histogram(group),
        "confidence": _split(found.confidence),
        "entropy": _split(found.entropy_change),
        "discrepancy": found.discrepancy,
        "atfd": _short(found.atfd),
        "risk": _curve(group),
    }  # fmt: skip


def _histogram(group: Group) -> dict[str, list[float]]:
    values, correct = group.pooled["confidence"], group.pooled["correct"].astype(bool)
    sides = {"correct": values[correct], "wrong": values[~correct]}
    return {name: [round(float(share), 6) for share in np.histogram(side, 20, (0, 1))[0] / len(values)]
            for name, side in sides.items()}  # fmt: skip


def _curve(group: Group) -> list[list[float]]:
    curve = risk_coverage(group.pooled["confidence"], group.pooled["correct"])
    at = np.unique(np.linspace(0, len(curve.risk) - 1, CURVE_POINTS).astype(int))
    return [[round(float(curve.coverage[k]), 5), round(float(curve.risk[k]), 5)] for k in at]


def _split(split: Split) -> dict[str, float | None]:
    fields = ("correct", "wrong", "correct_error", "wrong_error")
    return {name: _short(getattr(split, name)) for name in fields}


def _short(value: float | int | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 6)


def _texts(records: Records) -> tuple[list[dict[str, Any]], str]:
    """t-SNE positions where a run kept text features, and otherwise why there are none."""
    try:
        return [
            {
                "dataset": texts.dataset,
                "image": texts.image,
                "labels": texts.thinned().labels,
                "start": texts.dispersion(),
                "methods": {name: _embedded(texts.thinned(), name, texts.dispersion(name))
                            for name in texts.tuned if name != "zero-shot"},
            }
            for texts in text_features(records)
        ], ""  # fmt: skip
    except (InvalidDatasetError, MissingDependencyError) as reason:
        return [], str(reason)


def _embedded(texts: TextFeatures, method: str, dispersion: float) -> dict[str, Any]:
    before, after = embed(texts.start, texts.tuned[method])
    return {"before": before.round(2).tolist(), "after": after.round(2).tolist(), "atfd": dispersion}


def _run(header: dict[str, Any]) -> dict[str, Any]:
    """The header without the long lists of classes."""
    kept = {key: value for key, value in header.items() if key not in ("datasets", "methods")}
    told = {name: {key: value for key, value in facts.items() if key != "classes"}
            for name, facts in header.get("datasets", {}).items()}  # fmt: skip
    return {**kept, "datasets": told}
