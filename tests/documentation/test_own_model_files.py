"""The guide names the files that a model's folder needs: poise loads a folder that has no others."""

from __future__ import annotations

from poise.backbones.loaders.checkpoint import OPEN_CLIP_WEIGHTS
from poise.backbones.loaders.openclip_load import CONFIG_NAME
from tests.documentation.blocks import ROOT


def test_the_files_of_a_folder_in_open_clips_format() -> None:
    page = (ROOT / "docs" / "guides" / "own_model.md").read_text("utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `local-dir:` |"))
    assert all(f"`{name}`" in row for name in (CONFIG_NAME, OPEN_CLIP_WEIGHTS[0]))
    present = {
        path.name for path in (ROOT / "tests" / "golden" / "model").iterdir()
    }  # the folder of the page's command
    assert present == {CONFIG_NAME, OPEN_CLIP_WEIGHTS[0]}
