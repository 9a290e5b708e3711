"""The small trained model that is part of the package, loaded in plain torch.

Its folder is in open_clip's `local-dir` format, and open_clip computes the same features. But importing open_clip with
timm and torchvision takes longer than classifying an image, so the file is read here without them.
"""

from __future__ import annotations

import functools
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

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, OwnPipeline, TextSide, Weights, freeze
from poise.backbones.fingerprint import structure
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.backbones.text.vocabulary import vocabulary
from poise.backbones.vision.efficientnet import EfficientNetLite
from poise.errors import InvalidCheckpointError, ModelNotFoundError
from poise.files import checksum, read_bounded
from poise.types import ImageSpec

FOLDER = Path(__file__).parents[1] / "weights" / "pocket"
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
FIRST = "a63777ef01ab60aa8ef32eac4b9ac5afe76f53e838db25c125964e9d9af43cc9"  # of the weights of pocket-1
State = dict[str, Tensor]


def load_pocket_1(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Load the first weights of ``pocket``, which calibrations and prompts of their fingerprint need."""
    if missing := [file for file in (CONFIG, WEIGHTS) if not (folder / file).is_file()]:
        raise ModelNotFoundError(
            f"'{folder}' has no {' and no '.join(missing)}.", hint="Give a folder with the two files of pocket-1."
        )
    if checksum(read_bounded(folder / WEIGHTS)) != FIRST:
        raise InvalidCheckpointError(
            f"'{folder}' has other weights than pocket-1.", hint="Use model='pocket', or local-dir:PATH."
        )
    return load_pocket(device=device, dtype=dtype, folder=folder, name="pocket-1")


def load_pocket(*, device: torch.device, dtype: torch.dtype, folder: Path = FOLDER, name: str = "pocket") -> Encoder:
    """Load the encoder ``pocket``."""
    if not (folder / CONFIG).is_file():
        raise ModelNotFoundError(
            "This installation has no weights for 'pocket'.", hint="Use model='tiny' (random weights) or another model."
        )
    config = json.loads((folder / CONFIG).read_text())
    try:
        state = load_file(folder / WEIGHTS)
    except Exception as error:
        raise InvalidCheckpointError(
            f"The weights of 'pocket' can't be read: {error}.", hint="Install poise again."
        ) from error
    weights = {name: tensor.float() for name, tensor in state.items()}
    trunk, head = EfficientNetLite(_below(weights, "visual.trunk.")), _linear(weights, "visual.head.proj")
    image_tower = nn.Sequential(trunk, head)
    texts = {name: tensor for name, tensor in weights.items() if not name.startswith("visual.")}
    settings = f"{structure(image_tower)}\n{config['model_cfg']['text_cfg']}"
    hashed = Weights.before_cast(lambda: {**image_tower.state_dict(), **texts}, settings, dtype)
    freeze(image_tower, device, dtype)
    text = _text_side({name: tensor.to(device, dtype) for name, tensor in texts.items()}, config["model_cfg"])
    scale = math.exp(float(weights["logit_scale"].double()))
    encoder = Encoder(name, ImageSide(_spec(config), image_tower), text, hashed, scale=scale)
    encoder.own = OwnPipeline(
        "open_clip",
        ("EfficientNetLite", "CausalTower"),
        lambda texts: _own(folder).texts(texts),
        lambda images: _own(folder).images(images),
    )
    return encoder


def _own(folder: Path) -> OwnPipeline:
    """Return open_clip's way; loading it takes seconds, so that only a comparison does it."""
    from poise.backbones.loaders.openclip_load import load_folder

    own = load_folder(str(folder), device=torch.device("cpu"), dtype=torch.float32).own
    assert own is not None
    return own


def _spec(config: dict[str, Any]) -> ImageSpec:
    preprocess = config["preprocess_cfg"]
    return ImageSpec(
        size=int(config["model_cfg"]["vision_cfg"]["image_size"]),
        mean=tuple(preprocess["mean"]),
        std=tuple(preprocess["std"]),
        interpolation=preprocess["interpolation"],
        resize=preprocess["resize_mode"],
    )


def _text_side(weights: State, config: dict[str, Any]) -> TextSide:
    heads, layers = int(config["text_cfg"]["heads"]), int(config["text_cfg"]["layers"])
    blocks = tuple(_block(_below(weights, f"transformer.resblocks.{layer}."), heads) for layer in range(layers))
    table = nn.Embedding.from_pretrained(weights["token_embedding.weight"])
    final, projection = _norm(weights, "ln_final"), weights["text_projection"]
    positions = weights["positional_embedding"]
    tower = CausalTower(blocks, table, positions, lambda x: final(x) @ projection)
    tokenizer = _tokenizer()
    start, end, encode = tokenizer.sot_token_id, tokenizer.eot_token_id, tokenizer.encode

    def ids(texts: Sequence[str]) -> list[list[int]]:
        return [[start, *encode(text), end] for text in texts]

    words = partial(vocabulary, tokenizer)
    return TextSide(ids, table, SharedPrefix(tower), len(positions), False, 0, words, "lower")


def _block(weights: State, heads: int) -> Block:
    return Block(
        heads=heads,
        weight=weights["attn.in_proj_weight"],
        bias=weights["attn.in_proj_bias"],
        norm1=_norm(weights, "ln_1"),
        out=_linear(weights, "attn.out_proj"),
        norm2=_norm(weights, "ln_2"),
        mlp=Mlp(_linear(weights, "mlp.c_fc"), nn.GELU(), _linear(weights, "mlp.c_proj")),
    )


def _below(weights: State, prefix: str) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _linear(weights: State, name: str) -> nn.Linear:
    state = _below(weights, f"{name}.")
    outputs, inputs = state["weight"].shape
    linear = nn.Linear(inputs, outputs, bias="bias" in state, device="meta")
    linear.load_state_dict(state, assign=True)
    return linear.requires_grad_(False)


def _norm(weights: State, name: str) -> nn.LayerNorm:
    state = _below(weights, f"{name}.")
    norm = nn.LayerNorm(len(state["weight"]), device="meta")
    norm.load_state_dict(state, assign=True)
    return norm.requires_grad_(False)


@functools.cache  # reading its 48 thousand merges takes longer than an image
def _tokenizer() -> Any:
    """Return CLIP's byte-pair encoding from one file of open_clip, without importing the package."""
    package = importlib.util.find_spec("open_clip")
    if package is None or package.origin is None:
        raise ModelNotFoundError("CLIP's tokenizer is part of open_clip.", hint="pip install open_clip_torch")
    spec = importlib.util.spec_from_file_location("poise_clip_bpe", Path(package.origin).parent / "tokenizer.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # The module has made one already, which takes as long as an image; its name is not part of open_clip's interface.
    return getattr(module, "_tokenizer", None) or module.SimpleTokenizer()
