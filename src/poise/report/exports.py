"""Results for other tools: CSV for reliability-diagram scripts, JSON for CLIP_benchmark's ``build`` command."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from poise import metrics as rows
from poise.report.runs import Group, Records, Setting, load
from poise.report.scores import scoreboard
from poise.storage import safe_cell


def export(runs: str | Path | Records, out: str | Path, *, names: bool = False) -> list[Path]:
    """Both exports of a folder of runs: ``out/csv/*.csv`` and ``out/clip_benchmark/*.json``."""
    records = load(runs)
    folder = Path(out)
    return [
        *export_csv(records, folder / "csv", names=names),
        *export_clip_benchmark(records, folder / "clip_benchmark"),
    ]


def export_csv(records: Records, out: str | Path, *, names: bool = False) -> list[Path]:
    """``true_label,pred_label,confidence``, a file for each group and seed; ``names``: class names, not numbers."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for group in records.groups:
        classes = records.classes(group.dataset) if names else ()
        for seed, found in group.seeds.items():
            path = folder / f"{file_name(records, group)}_seed{seed}.csv"
            with path.open("w", newline="", encoding="utf-8") as sink:
                writer = csv.writer(sink, lineterminator="\n")
                writer.writerow(["true_label", "pred_label", "confidence"])
                for label, prediction, confidence in zip(
                    found["label"], found["prediction"], found["confidence"], strict=True
                ):
                    pair = [safe_cell(classes[k]) if classes else int(k) for k in (label, prediction)]
                    writer.writerow([*pair, repr(float(confidence))])
            written.append(path)
    return written


def export_clip_benchmark(records: Records, out: str | Path) -> list[Path]:
    """One JSON for each group, as ``clip_benchmark eval`` writes it; means over seeds, fractions, no intervals."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    board = scoreboard(records, resamples=1)
    written = []
    for (_, dataset, method), found in board.entries.items():
        group = found.group
        metrics = {name: found.scores[name].value for name in rows.names() if name in found.scores}
        renamed = {"acc1": metrics.pop("accuracy"), "acc5": metrics.pop("top5", None)}
        recall = float(np.mean([_recall(each["label"], each["prediction"]) for each in group.seeds.values()]))
        model, pretrained = _split_name(group.setting)
        content: dict[str, Any] = {
            "dataset": dataset,
            "model": model,
            "pretrained": pretrained if method == "zero-shot" else f"{pretrained}+{method}",
            "task": "zeroshot_classification",
            "metrics": {**{name: value for name, value in renamed.items() if value is not None},
                        "mean_per_class_recall": recall, **metrics},
            "language": "en",
            "method": method,
            "n": group.n,
            "seeds": len(group.seeds),
        }  # fmt: skip
        path = folder / f"{file_name(records, group)}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(path)
    return written


def file_name(records: Records, group: Group) -> str:
    """Dataset, method and setting in letters that every file system takes; settings are numbered when several."""
    settings = records.settings
    number = f"_{settings.index(group.setting) + 1}" if len(settings) > 1 else ""
    parts = (group.dataset, group.method, group.setting.model)
    return "_".join(re.sub(r"[^A-Za-z0-9.+-]+", "-", part).strip("-.") for part in parts) + number


def _split_name(setting: Setting) -> tuple[str, str]:
    """open_clip's ``model/tag`` as two fields; other names have no tag."""
    model, _, tag = setting.model.partition("/") if ":" not in setting.model else (setting.model, "", "")
    return model, tag or "poise"


def _recall(labels: np.ndarray, predictions: np.ndarray) -> float:
    """The mean over classes that occur of the share of their images that is found."""
    return float(np.mean([(predictions[labels == k] == k).mean() for k in np.unique(labels)]))
