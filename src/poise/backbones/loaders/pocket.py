"""The small trained model that ships inside the package, loaded in plain torch.

The folder is in open_clip's `local-dir` format and open_clip gives the same features; but importing it with timm and
torchvision takes longer than classifying a photo, so the same file is read here without them.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, TextSide, Tokenizer, freeze
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.backbones.vision.efficientnet import EfficientNetLite
from poise.errors import InvalidCheckpointError, ModelNotFoundError
from poise.types import ImageSpec

FOLDER = Path(__file__).parents[1] / "weights" / "pocket"
Weights = dict[str, Tensor]


def load_pocket(*, device: torch.device, dtype: torch.dtype, folder: Path = FOLDER) -> Encoder:
    """The encoder called ``pocket``."""
    if not (folder / "open_clip_config.json").is_file():
        raise ModelNotFoundError(
            "This installation has no weights for 'pocket'.", hint="Use model='tiny' (random weights) or another model."
        )
    config = json.loads((folder / "open_clip_config.json").read_text())
    try:
        state = load_file(folder / "open_clip_model.safetensors")
    except Exception as error:
        raise InvalidCheckpointError(
            f"The weights of 'pocket' can't be read: {error}.", hint="Install poise again."
        ) from error
    weights = {name: tensor.float() for name, tensor in state.items()}
    tower = PocketTexts(weights, config["model_cfg"]["text_cfg"])
    image_tower = PocketImageTower(weights)
    freeze(tower, device, dtype)
    freeze(image_tower, device, dtype)
    text = TextSide(_tokenizer(), tower.table, SharedPrefix(tower.causal()), len(tower.positions), False, 0)
    scale = math.exp(float(weights["logit_scale"].double()))
    return Encoder("pocket", ImageSide(_spec(config), image_tower), text, scale=scale)


def _spec(config: dict[str, Any]) -> ImageSpec:
    preprocess = config["preprocess_cfg"]
    return ImageSpec(
        size=int(config["model_cfg"]["vision_cfg"]["image_size"]),
        mean=tuple(preprocess["mean"]),
        std=tuple(preprocess["std"]),
        interpolation=preprocess["interpolation"],
        resize=preprocess["resize_mode"],
    )


class PocketImageTower(nn.Module):
    """EfficientNet-Lite and a linear projection into the joint space."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.trunk = EfficientNetLite(_below(weights, "visual.trunk."))
        self.weight = nn.Parameter(weights["visual.head.proj.weight"])
        self.bias = nn.Parameter(weights["visual.head.proj.bias"]) if "visual.head.proj.bias" in weights else None

    def forward(self, images: Tensor) -> Tensor:
        """[N, 3, S, S] -> [N, D]."""
        return F.linear(self.trunk(images), self.weight, self.bias)


class PocketTexts(nn.Module):
    """The causal text tower's weights, and its description for the shared-prefix forward."""

    def __init__(self, weights: Weights, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.layers = int(config["heads"]), int(config["layers"])
        self.table = nn.Embedding.from_pretrained(weights["token_embedding.weight"])
        self.positions = nn.Parameter(weights["positional_embedding"])
        self.projection = nn.Parameter(weights["text_projection"])
        self.final = _norm(weights, "ln_final")
        self.blocks = nn.ModuleList(
            _block(_below(weights, f"transformer.resblocks.{layer}.")) for layer in range(self.layers)
        )

    def causal(self) -> CausalTower:
        """What the shared-prefix forward needs; made after the weights are on their device."""
        blocks = tuple(
            Block(
                heads=self.heads,
                weight=block["qkv"].weight,  # type: ignore[index]
                bias=block["qkv"].bias,  # type: ignore[index]
                norm1=block["norm1"],  # type: ignore[index]
                out=block["out"],  # type: ignore[index]
                norm2=block["norm2"],  # type: ignore[index]
                mlp=Mlp(*block["mlp"]),  # type: ignore[index]
            )
            for block in self.blocks
        )
        return CausalTower(blocks, self.table, self.positions, lambda x: self.final(x) @ self.projection)


def _below(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _block(weights: Weights) -> nn.ModuleDict:
    mlp = nn.Sequential(_linear(weights, "mlp.c_fc.{}"), nn.GELU(), _linear(weights, "mlp.c_proj.{}"))
    return nn.ModuleDict(
        {
            "norm1": _norm(weights, "ln_1"),
            "qkv": _linear(weights, "attn.in_proj_{}"),
            "out": _linear(weights, "attn.out_proj.{}"),
            "norm2": _norm(weights, "ln_2"),
            "mlp": mlp,
        }
    )


def _linear(weights: Weights, name: str) -> nn.Linear:
    weight = weights[name.format("weight")]
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(weights[name.format("bias")])
    return linear


def _norm(weights: Weights, name: str) -> nn.LayerNorm:
    norm = nn.LayerNorm(len(weights[f"{name}.weight"]))
    norm.weight, norm.bias = nn.Parameter(weights[f"{name}.weight"]), nn.Parameter(weights[f"{name}.bias"])
    return norm


def _tokenizer() -> Tokenizer:
    """CLIP's byte-pair encoding as open_clip carries it: its one file is run without importing the package."""
    package = importlib.util.find_spec("open_clip")
    if package is None or package.origin is None:
        raise ModelNotFoundError(
            "CLIP's tokenizer comes with open_clip, which is missing.", hint="pip install open_clip_torch"
        )
    spec = importlib.util.spec_from_file_location("poise_clip_bpe", Path(package.origin).parent / "tokenizer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return partial(_ids, module.SimpleTokenizer())


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    return [[tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id] for text in texts]
