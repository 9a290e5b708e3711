"""Generated records: what `poise bench run` would write, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poise import methods
from poise.evaluate.records import SCHEMA
from poise.evaluate.storage.ledger import Ledger
from poise.files import checksum

METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt", "tpt+cats", "kld", "kld+cats")
SHARPNESS = dict(zip(METHODS, (1.0, 2.2, 1.6, 1.4, 1.9, 1.3, 1.1), strict=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def entropy(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(np.maximum(probs, 1e-300))).sum(-1)


def rows(
    dataset: str = "caltech101",
    method: str = "kld+cats",
    seed: int = 1,
    *,
    images: int = 80,
    classes: int = 6,
    model: str = "pocket",
    run: str = "demo",
    full: bool = True,
    error_at: tuple[int, ...] = (),
) -> list[dict[str, Any]]:
    fixed = np.random.default_rng(sum(map(ord, dataset)))
    labels = fixed.integers(0, classes, images)
    base = 1.2 * fixed.standard_normal((images, classes))
    base[np.arange(images), labels] += 1.3
    noise = 0.15 * np.random.default_rng([seed, *map(ord, method)]).standard_normal((images, classes))
    start, probs = softmax(base), softmax(SHARPNESS.get(method, 1.0) * (base + (method != "zero-shot") * noise))
    target = softmax(base + 3 * noise)
    order = np.argsort(-probs, axis=1, kind="stable")[:, :5]
    made = []
    for at in range(images):
        broken = at in error_at
        made.append(
            {
                "run": run,
                "model": model,
                "dataset": dataset,
                "method": method,
                "seed": seed,
                "id": f"im{at:05d}.jpg",
                "label": int(labels[at]),
                "prediction": -1 if broken else int(probs[at].argmax()),
                "confidence": float("nan") if broken else float(probs[at].max()),
                "entropy": float(entropy(probs[at])),
                "correct": bool(not broken and probs[at].argmax() == labels[at]),
                "init_prediction": int(start[at].argmax()),
                "init_confidence": float(start[at].max()),
                "init_entropy": float(entropy(start[at])),
                "target_prediction": int(target[at].argmax()),
                "probs": probs[at].astype(np.float32) if full and not broken else None,
                "top_ids": None if full or broken else order[at].astype(np.int32),
                "top_probs": None if full or broken else probs[at][order[at]].astype(np.float32),
                "atfd": 0.4 + 0.01 * SHARPNESS.get(method, 1.0),
                "init_atfd": 0.4,
                "fallback": at == 3 and method == "tpt",
                "error": "unreadable_image: made to fail" if broken else None,
            }
        )
    return made


def header(run: str = "demo", model: str = "pocket", classes: int = 6, **config: Any) -> dict[str, Any]:
    names = ["=cat", "dog", "<b>bird</b>", "boat", "tree", "car", *(f"class {k}" for k in range(6, classes))][:classes]
    described = {"classes": names, "images": 80}
    chosen = {"model": model, "views": 64, "framework": "tpt", "init": "template", **config}
    return {
        "format": "poise-run/1",
        "run": run,
        "title": "",
        "config": chosen,
        "config_hash": "0" * 64,
        "methods": {name: methods.get(name).settings() for name in METHODS},
        "datasets": {name: described for name in ("caltech101", "eurosat", "dtd", "pets", "imagenet", "imagenet-a")},
        "versions": {"poise": "0", "python": "3.11"},
        "commit": None,
        "device": "cpu",
    }


def write_run(
    runs: Path,
    *,
    run: str = "demo",
    datasets: tuple[str, ...] = ("caltech101", "eurosat"),
    methods: tuple[str, ...] = METHODS,
    seeds: tuple[int, ...] = (1, 2),
    model: str = "pocket",
    config: dict[str, Any] | None = None,
    init_kind: str = "template",
    **options: Any,
) -> Path:
    folder = runs / run
    for dataset in datasets:
        for seed in seeds:
            part = folder / dataset / f"seed{seed}" / "part-00000.parquet"
            part.parent.mkdir(parents=True, exist_ok=True)
            made = [row for method in methods for row in rows(dataset, method, seed, model=model, run=run, **options)]
            pq.write_table(pa.Table.from_pylist(made, schema=SCHEMA), part)
    list_parts(folder)
    head = header(run, model, options.get("classes", 6), **(config or {}))
    (folder / "run.json").write_text(json.dumps({**head, "init_kind": init_kind}), encoding="utf-8")
    return folder


def list_parts(folder: Path) -> None:
    """Write the ledger of a run's files as they are now."""
    ledger = Ledger(folder / "ledger.jsonl")
    for part in sorted(folder.rglob("*.parquet")):
        unit = part.relative_to(folder).with_suffix("").as_posix()
        ledger.append({"unit": unit, "sha256": checksum(part.read_bytes()), "images": pq.read_metadata(part).num_rows})


def write_features(
    folder: Path, dataset: str = "caltech101", classes: int = 6, methods: tuple[str, ...] = METHODS
) -> None:
    generator = np.random.default_rng(0)
    start = generator.standard_normal((classes, 16))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    tuned = {f"tuned/{name}": np.stack([start + 0.05 * generator.standard_normal(start.shape)] * 2) for name in methods}
    (folder / "features").mkdir(exist_ok=True)
    names = np.array(["=cat", "dog", "<b>bird</b>", "boat", "tree", "car"][:classes])
    np.savez(
        folder / "features" / f"{dataset}.npz", labels=names, start=start, sample_ids=np.array(["a", "b"]), **tuned
    )
