"""The class-token forward against the image tower's own."""

from __future__ import annotations

import pytest
import torch
from open_clip.model import CLIP

from poise.backbones.loaders.openclip import class_token_tower
from poise.backbones.loaders.tiny import CONFIG, tiny_model


def test_equal_to_the_tower_itself() -> None:
    visual = tiny_model().double().requires_grad_(False).visual
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tower = class_token_tower(visual)
    assert tower is not None
    torch.testing.assert_close(tower(images), visual(images), atol=1e-12, rtol=0)


@pytest.mark.parametrize("vision", [{"pool_type": "avg"}, {"attentional_pool": True}, {"output_tokens": True}])
def test_other_towers_keep_their_own_forward(vision: dict[str, object]) -> None:
    with torch.random.fork_rng(devices=[]):
        model = CLIP(**{**CONFIG, "vision_cfg": {**CONFIG["vision_cfg"], **vision}})  # type: ignore[dict-item]
    assert class_token_tower(model.visual) is None
