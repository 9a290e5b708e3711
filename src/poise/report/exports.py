"""Results for other tools: CSV for reliability-diagram scripts, JSON for CLIP_benchmark's ``build`` command."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from poise.files import write_atomic
from poise.report.records.groups import Group
from poise.report.records.runs import Records, load
from poise.report.records.scores import scoreboard
from poise.text import file_name, safe_cell


def export(runs: str | Path | Records, out: str | Path, *, names: bool = False) -> list[Path]:
    """Write ``out/csv/*.csv`` and ``out/clip_benchmark/*.json``, and return the files.

    Both forms have one label per image, so that datasets whose labels are independent are left out.
    """
    records = load(runs)
    records = replace(records, groups=tuple(group for group in records.groups if not group.independent))
    csv_files = export_csv(records, Path(out) / "csv", names=names)
    return csv_files + export_clip_benchmark(records, Path(out) / "clip_benchmark")


def export_csv(records: Records, out: str | Path, *, names: bool = False) -> list[Path]:
    """Write ``true_label,pred_label,confidence``, one file per group and seed; see `export`."""
    written = []
    for group in records.groups:
        classes = records.classes(group.dataset) if names else ()
        for seed, rows in group.seeds.items():
            sink = io.StringIO()
            writer = csv.writer(sink, lineterminator="\n")
            writer.writerow(["true_label", "pred_label", "confidence"])
            for *labels, confidence in zip(rows["label"], rows["prediction"], rows["confidence"], strict=True):
                cells = [safe_cell(classes[k]) if classes else int(k) for k in labels]
                writer.writerow([*cells, repr(float(confidence))])
            path = Path(out) / f"{_name(records, group)}_seed{seed}.csv"
            write_atomic(path, sink.getvalue().encode())
            written.append(path)
    return written


def export_clip_benchmark(records: Records, out: str | Path) -> list[Path]:
    """Write one JSON file per group as ``clip_benchmark eval`` does: fractions, means over seeds, no intervals."""
    written = []
    for (setting, dataset, method), entry in scoreboard(records, resamples=1).entries.items():
        group = entry.group
        metrics = {name: score.value for name, score in entry.scores.items()}
        renamed = {new: metrics.pop(old) for new, old in (("acc1", "accuracy"), ("acc5", "top5")) if old in metrics}
        recall = float(np.mean([_recall(rows["label"], rows["prediction"]) for rows in group.seeds.values()]))
        model, pretrained = _split_name(setting.model)
        content: dict[str, Any] = {
            "dataset": dataset,
            "model": model,
            "pretrained": f"{pretrained}+{method}" if records.tunes(method) or group.calibration else pretrained,
            "task": "zeroshot_classification",
            "metrics": {**renamed, "mean_per_class_recall": recall, **metrics},
            "language": "en",
            "method": method,
            "n": group.n,
            "seeds": len(group.seeds),
        }
        path = Path(out) / f"{_name(records, group)}.json"
        write_atomic(path, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
        written.append(path)
    return written


def _name(records: Records, group: Group) -> str:
    """Return dataset, method and model as a file name; several settings are numbered."""
    settings = records.settings
    number = f"_{settings.index(group.setting) + 1}" if len(settings) > 1 else ""
    parts = (group.dataset, group.method, group.setting.model)
    return "_".join(file_name(part.replace("_", "-"), unique=False) for part in parts) + number


def _split_name(model: str) -> tuple[str, str]:
    """Return open_clip's ``model/tag`` as two fields; other names have no tag."""
    name, _, tag = model.partition("/") if ":" not in model else (model, "", "")
    return name, tag or "poise"


def _recall(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return the mean recall over the classes that occur."""
    return float(np.mean([(predictions[labels == k] == k).mean() for k in np.unique(labels)]))
