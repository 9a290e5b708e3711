"""Token vectors of RMS 0.02: rescaling the residual stream changes no feature."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from poise.backbones.loaders.pocket import FOLDER

TOOLS = Path(__file__).parents[2] / "tools" / "pocket"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The scripts of tools/pocket import each other by name, as when one of them is run."""
    monkeypatch.syspath_prepend(str(TOOLS))
    yield
    for name in ("units", "tower"):
        sys.modules.pop(name, None)


def features(text: dict[str, torch.Tensor], epsilon: float) -> torch.Tensor:
    from tower import END, START, TextTower

    tower = TextTower(256, 4, 6, 512).double()
    tower.load_state_dict(text)
    for module in tower.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = epsilon
    ids = torch.tensor([[START, 320, 1125, 539, 320, word, 269, END] for word in (2368, 1929, 1615, 48000)])
    with torch.no_grad():
        return torch.nn.functional.normalize(tower(ids), dim=-1)


def test_rescaled_tower_gives_the_same_features(tools: None) -> None:
    import units

    state = load_file(FOLDER / "open_clip_model.safetensors")
    text = {k: v.double() for k, v in state.items() if not k.startswith("visual.") and k != "logit_scale"}
    scaled = units.rescale(text)
    assert units.rms(scaled) == pytest.approx(0.02, rel=1e-9)
    factor = units.RMS / units.rms(text)
    # Exact but for rounding, if the norms' epsilon is rescaled too ...
    exact = features(scaled, 1e-5 * factor**2)
    torch.testing.assert_close(exact, features(text, 1e-5), atol=1e-10, rtol=0)
    # ... and with the same epsilon, which is small against the variance of the stream, the direction hardly moves.
    cosine = (features(scaled, 1e-5) * features(text, 1e-5)).sum(-1)
    assert cosine.min() > 0.9999
    assert set(scaled) == set(text)
