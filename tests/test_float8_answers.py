"""`benchmarks/float8_answers.py` from images to the report, with a ViT of two small blocks and without float8."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from poise.backbones.loaders.pocket import FOLDER

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("float8_answers")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(10):
        folder = tmp_path / "images" / ("cat", "dog")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        small.resize((80, 60)).save(folder / f"{number}.png")
    return tmp_path / "images"


def test_from_images_to_the_report(script: ModuleType, images: Path, tmp_path: Path) -> None:
    name, packed = f"folder:{images}", [tmp_path / folder for folder in ("packed", "again")]
    for out in packed:
        script.main(
            ["prepare", "--test", name, "--train", name, "--count", "4", "--train-side", "40", "--out", str(out)]
        )
    folder, vit, report = packed[0] / "images", tmp_path / "vit", tmp_path / "report"
    for file in folder.iterdir():
        assert file.read_bytes() == (packed[1] / "images" / file.name).read_bytes()
    assert len(script.train_images(folder)) == 6  # those that are not tested
    assert len(script.held_out_images(folder)) == 4

    script.main(
        [
            "train",
            "--images",
            str(folder),
            "--pocket",
            str(packed[0] / "pocket"),
            "--out",
            str(vit),
            "--architecture",
            "tiny",
            "--steps",
            "2",
            "--batch",
            "4",
            "--every",
            "0",
            "--device",
            "cpu",
        ]
    )
    trained, pocket = load_file(vit / "open_clip_model.safetensors"), load_file(FOLDER / "open_clip_model.safetensors")
    texts = [key for key in trained if not key.startswith("visual.")]
    assert texts
    for key in texts:
        torch.testing.assert_close(trained[key], pocket[key].float(), rtol=0, atol=0)

    script.main(
        [
            "compare",
            "--images",
            str(folder),
            "--model",
            str(vit),
            "--out",
            str(report),
            "--views",
            "4",
            "--dtypes",
            "float64",
            "float32",
            "--device",
            "cpu",
        ]
    )
    found = json.loads((report / "float8_answers.json").read_text())
    assert found["images"] == 4
    assert found["model"]["steps"] == 2
    (pair,) = found["pairs"]
    assert pair["least_cosine"] > 0.9999
    assert all(row["confidence_change_mean"] < 0.01 for row in pair["methods"].values())
    assert "distilled from pocket" in (report / "float8_answers.md").read_text()


def test_a_central_crop_of_a_square_is_the_image(script: ModuleType) -> None:
    crops = importlib.import_module("random_crops")
    pixels = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    squares = crops.Squares(pixels, torch.ones(3))
    cut = crops.Cut.central(squares, torch.tensor([2, 0]))
    resized = cut.resized(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    torch.testing.assert_close(resized, pixels[[2, 0]] / 127.5 - 1, atol=1e-4, rtol=0)


def test_random_crops_lie_within_the_image(script: ModuleType) -> None:
    crops = importlib.import_module("random_crops")
    squares = crops.Squares(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0.4, 2.5]))
    maps = crops.Cut.random(squares, torch.arange(2).repeat(200)).maps
    reach = maps[:, :, :2].abs().sum(2) + maps[:, :, 2].abs()  # of the edges, in units of half a side
    assert reach.max() <= 1 + 1e-5


def test_half_of_the_patches_are_left_out_in_training_only(script: ModuleType) -> None:
    layer = importlib.import_module("distil").HalfOfPatches()
    x = torch.arange(9.0)[None, :, None].repeat(2, 1, 3)
    kept = layer(x)
    assert kept.shape == (2, 5, 3)
    assert (kept[:, 0] == 0).all()
    assert all(len(set(row.tolist())) == 5 for row in kept[..., 0])
    assert layer.eval()(x) is x
