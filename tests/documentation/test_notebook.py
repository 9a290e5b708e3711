"""The notebook of the tutorial runs from its first cell to its last, and shows what it promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.documentation import blocks

CELLS = json.loads((blocks.ROOT / "docs" / "tutorial.ipynb").read_text("utf-8"))["cells"]


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default:.*may be a copy")  # two crops of one photo
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "tutorial.ipynb", "exec"), names)
    assert len(names["frame"]) == 40
    assert len(names["found"]) == 60
    assert names["found"].metrics()["zero-shot"]["accuracy"].value > 0.5
    for shown in (names["calibration"], names["found"], names["calibrated"](names["new"][0])):
        assert "<table" in shown._repr_html_()


def test_cells_have_no_outputs() -> None:
    assert all(cell.get("outputs", []) == [] for cell in CELLS)
