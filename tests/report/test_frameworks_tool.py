"""tools/frameworks.py on a setting that answers without a model."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from poise import methods

sys.path.append(str(Path(__file__).parents[2] / "tools"))
frameworks = pytest.importorskip("frameworks", reason="the sdist may come without tools")
paired = pytest.importorskip("paired", reason="the sdist may come without tools")


def scores() -> object:
    return paired.scores(np.array([[0.9, 0.1], [0.4, 0.6]]), np.array([0, 0]))


class Made:
    """What `measure_baselines` asks of a Setting."""

    def __init__(self, names: list[str]) -> None:
        self.options = Namespace(dataset="caltech101")
        self.methods = [methods.get(name) for name in names]
        self.from_words = {name: scores() for name in names}
        self.views, self.rows = None, list[object]()

    def fitted_temperature(self) -> float:
        return 1.5

    def scores(self, features: object, chosen: list[methods.Method], more: object = None, **how: str) -> object:
        return {method.name: scores() for method in chosen}

    def tell(self, title: str, difference: str, rows: list[object]) -> None:
        self.rows = rows


def test_baselines_are_of_the_methods_that_were_asked_for() -> None:
    setting = Made(["c-tpt", "tpt"])
    frameworks.measure_baselines(setting)
    assert [row.name for row in setting.rows] == ["tpt, one template", "tpt, ensemble of four", "tpt, T = 1.500"]
    with pytest.raises(SystemExit, match="zero-shot, tpt, kld\\+cats"):
        frameworks.measure_baselines(Made(["c-tpt"]))
