"""Every family of models answers as its own library does; `python -m tests.backbones.zoo` prints the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from poise.backbones import load_model
from poise.backbones.families import FAMILIES, REFUSED
from poise.testing import check_backbone
from tests.backbones.zoo import PARITY, ROWS, compare, exported, shallow, tuned


def test_the_zoo_has_every_family() -> None:
    assert list(ROWS) == [family.key for family in FAMILIES]
    assert len(ROWS) >= 30


def test_the_stored_table_is_of_these_rows() -> None:
    stored = json.loads(PARITY.read_text())
    assert set(stored) - {"versions"} == set(ROWS)
    for key, row in ROWS.items():
        assert float(stored[key]["text"]) <= 1e-5
        assert float(stored[key]["image"]) <= 1e-5
        assert stored[key].get("onnx", row.onnx) == row.onnx
        assert stored[key].get("openvino", row.openvino) == row.openvino


def test_every_name_of_open_clip_is_one_that_it_has() -> None:
    import open_clip

    names = {f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()}
    assert {family.name for family in FAMILIES if "/" in family.name and ":" not in family.name} <= names
    assert {instead for _, instead in REFUSED.values() if ":" not in instead} <= names


@pytest.mark.parametrize("key", [key for key, row in ROWS.items() if row.quick])
def test_features_equal_those_of_the_library(key: str, tmp_path: Path) -> None:
    with shallow():
        own = ROWS[key].make(tmp_path / "model")
        encoder = load_model(own.name, device="cpu")
    row = compare(encoder, own)
    assert row.text <= 1e-5
    assert row.image <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("key", ROWS)
def test_features_tuning_and_export(key: str, tmp_path: Path) -> None:
    with shallow():
        own = ROWS[key].make(tmp_path / "model")
        encoder = load_model(own.name, device="cpu")
        row = compare(encoder, own)
        assert row.text <= 1e-5
        assert row.image <= 1e-5
        check_backbone(encoder)
        tuned(encoder)
        exported(ROWS[key], encoder, tmp_path)
