"""A small run on the tiny model, and its rows."""

from __future__ import annotations

from poise.evaluate import records
from poise.evaluate.config import build

NAMES = "zero-shot,c-tpt,kld+cats"


def configure(image_folder, out, **more):
    values = {
        "datasets": f"folder:{image_folder}",
        "model": "tiny",
        "methods": NAMES,
        "seeds": "1,2",
        "views": 4,
        "chunk": 4,
        "batch_size": 2,
        "workers": 2,
        "device": "cpu",
        "out": str(out),
        "name": "run",
        "tsne": True,
    }
    return build({**values, **more})


def rows_of(out):
    table = records.read(out).to_pylist()
    return {(row["seed"], row["id"], row["method"]): row for row in table}
