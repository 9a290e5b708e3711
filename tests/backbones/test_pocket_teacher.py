"""The teacher of pocket's second stage, on numbers derived by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F

TOOLS = Path(__file__).parents[2] / "tools" / "pocket"


@pytest.fixture
def distil(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The scripts of tools/pocket import each other by name, as when one of them is run."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(TOOLS))
    import distil

    yield distil
    for name in set(sys.modules) - before:
        if str(TOOLS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_classes_go_to_the_narrowest_label_and_the_rest_stays(distil: ModuleType) -> None:
    rows = [{"cover": [(c, 1.0)]} for c in range(1000)]
    rows += [{"cover": [(1, 1.0), (2, 1.0)]}, {"cover": [(1, 1.0), (2, 1.0), (3, 1.0)]}]  # say, dog and animal
    generator = torch.Generator().manual_seed(0)
    old = F.normalize(torch.randn(1002, 8, generator=generator), dim=-1)
    others = F.normalize(torch.randn(4, 8, generator=generator), dim=-1)
    images = F.normalize(torch.randn(3, 8, generator=generator), dim=-1)
    classes = F.one_hot(torch.tensor([1, 3, 10]), 1000).float()
    labels = distil.LabelSet([[1], [1], [1]], [1000, 1001, -1], [-1, -1, 2])
    found, known = distil.Teacher({"rows": rows}, old, others)(labels, {"features": images, "classes": classes})
    torch.testing.assert_close(known, torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(found[0], torch.tensor([0.6, 0.4, 0.0]))  # one class of two against one of three
    torch.testing.assert_close(found[1], torch.tensor([0.0, 1.0, 0.0]))
    before = distil.SCALE * images[2] @ torch.stack([old[1000], old[1001], others[2]]).T
    torch.testing.assert_close(found[2], before.softmax(-1))  # no label covers the class: the answer of the first stage
