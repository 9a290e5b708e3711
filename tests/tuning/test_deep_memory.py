"""MaPLe with 64 views of a ViT-B/16 stays below 16 GiB of device memory."""

from __future__ import annotations

import pytest
import torch

from poise import methods
from poise.inits import maple
from poise.prompts import tokenise
from poise.tuning.deep import DeepTuner


@pytest.mark.gpu
@pytest.mark.parametrize("selection", [0.1, 1.0])
def test_64_views_of_a_vit_b_16(selection: float) -> None:
    open_clip = pytest.importorskip("open_clip")
    from poise.backbones.loaders.openclip import wrap

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    device, labels = torch.device("cuda"), [f"thing number {i}" for i in range(100)]
    model, tokenizer = open_clip.create_model("ViT-B-16"), open_clip.get_tokenizer("ViT-B-16")
    encoder = wrap(model, tokenizer, {}, name="ViT-B-16/random", device=device, dtype=torch.float32)
    start = maple.fresh(encoder, labels, tokens=2, depth=3, seed=0)
    classes = tokenise(encoder, labels, maple.TEMPLATE, context="before", tokens=2)
    chosen = [methods.get(name, selection=selection) for name in ("tpt", "o-tpt", "kld+cats")]
    views = torch.randn(1, 64, 3, 224, 224)
    torch.cuda.reset_peak_memory_stats()
    answers = DeepTuner(encoder, classes, chosen, start).predict(views)
    assert all(answer.probs.isfinite().all() for answer in answers.values())
    assert torch.cuda.max_memory_allocated() < 16 * 2**30
