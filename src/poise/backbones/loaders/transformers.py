"""Encoders of CLIP, SigLIP and SigLIP2 checkpoints of transformers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, TextSide, Tokenizer, Weights, freeze
from poise.backbones.loaders import hub, schema
from poise.backbones.loaders.checkpoint import check_scale, check_weights, find_weights, library_errors, read_config
from poise.backbones.loaders.known_keys import FAMILIES, LARGEST_IMAGE, PREPROCESSOR, RESAMPLING, TRANSFORMERS_MODEL
from poise.backbones.loaders.tokenizer_files import FILES, clean_copy, load_tokenizer
from poise.backbones.text.every_pair import EveryPair
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.errors import InvalidCheckpointError, InvalidOptionError, ModelNotFoundError
from poise.types import ImageSpec

_FILES = ("config.json", "preprocessor_config.json", "model*.safetensors", "model.safetensors.index.json", *FILES)
_SHARD = re.compile(r"model-\d{1,6}-of-\d{1,6}\.safetensors")


def load_transformers(
    source: str, *, device: torch.device, dtype: torch.dtype, cache_dir: str | None = None
) -> Encoder:
    """Load a checkpoint from a folder that save_pretrained wrote, or from a hub repository."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if source.startswith((".", "/", "~")):
            raise ModelNotFoundError(f"'{source}' is not a folder.", hint="Give a folder that save_pretrained wrote.")
        folder = hub.fetch_folder(source, _FILES, cache_dir, needs="config.json")
    config = read_config(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        raise InvalidOptionError(
            f"'{source}' is a checkpoint of the family {family!r}.", hint=f"Accepted: {', '.join(FAMILIES)}."
        )
    file = folder / "preprocessor_config.json"
    processing = schema.read(PREPROCESSOR, read_config(file), file)
    model, tokenizer = _model(folder, schema.read(TRANSFORMERS_MODEL, config, folder / "config.json"))
    scale = float(model.logit_scale.detach().double().exp())  # read before the weights are cast
    bias = float(model.logit_bias.detach().double()) if family != "clip" else 0.0
    check_scale(source, scale, bias)
    freeze(model, device, dtype)
    with library_errors(folder):
        image, text = _image_side(model, processing, family), _text_side(model, tokenizer, folder, family)
    activation = "softmax" if family == "clip" else "sigmoid"
    weights = Weights.of(model)
    encoder = Encoder(f"transformers:{source}", image, text, weights, scale=scale, bias=bias, activation=activation)
    encoder.token_ids(["a photo of a cat."])  # raises an error if the tokenizer is for another text tower
    return encoder


def _model(folder: Path, config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the model and the tokenizer, loaded from a clean copy of the folder."""
    from transformers import AutoConfig, AutoModel

    index = _read_index(folder)
    files = [folder / name for name in sorted({*index.values()})] or [find_weights(folder, ["model.safetensors"])]
    with library_errors(folder), torch.device("meta"):
        empty = AutoModel.from_config(AutoConfig.for_model(**config), trust_remote_code=False)
    check_weights(files, empty)
    configs = {"config.json": config} | ({"model.safetensors.index.json": {"weight_map": index}} if index else {})
    with clean_copy(folder, configs, files) as clean:
        if not index and files[0].name != "model.safetensors":
            (clean / files[0].name).rename(clean / "model.safetensors")
        with library_errors(folder):
            model, report = AutoModel.from_pretrained(
                clean,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                dtype=torch.float32,
                output_loading_info=True,
            )
        missing = [f"{key}: missing" for key in sorted(report["missing_keys"])]
        if missing:
            raise InvalidCheckpointError(
                f"The weights in '{folder}' do not fit its configuration: {'; '.join(missing[:5])}.",
                hint="The weights and config.json must come from the same model.",
            )
        return model, load_tokenizer(clean, folder)


def _read_index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor of sharded weights; empty if there is one file."""
    path = folder / "model.safetensors.index.json"
    if not path.exists() or (folder / "model.safetensors").is_file():
        return {}
    index = read_config(path).get("weight_map")
    names = list(index.items()) if isinstance(index, dict) else [("weight_map", index)]
    for key, name in names:
        if not (isinstance(name, str) and _SHARD.fullmatch(name) and (folder / name).is_file()):
            raise InvalidCheckpointError(
                f"'{path}': {key[:80]!r} is in {str(name)[:80]!r}.",
                hint="Accepted: model-NUMBER-of-NUMBER.safetensors.",
            )
    return dict(names)


def _image_side(model: Any, processing: dict[str, Any], family: str) -> ImageSide:
    vision = model.config.vision_config
    grid = round(getattr(vision, "num_patches", 0) ** 0.5)  # for SigLIP2, whose input is patches instead of an image
    size = grid * vision.patch_size if family == "siglip2" else vision.image_size
    if size > LARGEST_IMAGE:
        raise InvalidCheckpointError(f"The model needs images of {size} pixels.", hint=f"Accepted: {LARGEST_IMAGE}.")
    spec = ImageSpec(
        size=int(size),
        mean=tuple(processing["image_mean"]),
        std=tuple(processing["image_std"]),
        interpolation=RESAMPLING[processing.get("resample", 3)],
        resize="shortest" if processing.get("do_center_crop") else "squash",
        crop_offset="floor",  # as transformers' image processors crop
    )

    def encode(views: Tensor) -> Tensor:
        inputs = {"pixel_values": views}
        if family == "siglip2":
            side = vision.patch_size
            patches = views.unflatten(3, (grid, side)).unflatten(2, (grid, side))  # [N, 3, g, s, g, s]
            patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # [N, g * g, s * s * 3]
            mask = torch.ones(patches.shape[:2], dtype=torch.int32, device=views.device)
            shapes = torch.full((views.shape[0], 2), grid, device=views.device)
            inputs = {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        output = model.get_image_features(**inputs)
        features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
        return features

    return ImageSide(spec, encode)


def _text_side(model: Any, tokenizer: Any, folder: Path, family: str) -> TextSide:
    tower = model.text_model
    table = tower.embeddings.token_embedding
    length = int(model.config.text_config.max_position_embeddings)
    ids, pad = _plain_ids(tokenizer, folder, right=family != "clip")
    if family == "clip":
        return TextSide(ids, table, SharedPrefix(_causal_tower(model)), length, False, pad)
    return TextSide(ids, table, EveryPair(table, _bidirectional(tower)), length, True, pad)


def _plain_ids(tokenizer: Any, folder: Path, *, right: bool) -> tuple[Tokenizer, int]:
    if right and tokenizer.padding_side != "right":
        raise InvalidOptionError(f"The tokenizer in '{folder}' pads on the left.", hint="Set padding_side to 'right'.")

    def ids(texts: Sequence[str]) -> list[list[int]]:
        rows: list[list[int]] = tokenizer(list(texts), padding=False, truncation=False, verbose=False)["input_ids"]
        return rows

    return ids, int(tokenizer.pad_token_id or 0)


def _causal_tower(model: Any) -> CausalTower:
    tower = model.text_model
    blocks = []
    for layer in tower.encoder.layers:
        attention = layer.self_attn
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        blocks.append(
            Block(
                heads=attention.num_heads,
                weight=torch.cat([part.weight for part in parts]),
                bias=torch.cat([part.bias for part in parts]),
                norm1=layer.layer_norm1,
                out=attention.out_proj,
                norm2=layer.layer_norm2,
                mlp=Mlp(layer.mlp.fc1, layer.mlp.activation_fn, layer.mlp.fc2),
            )
        )
    table, positions = tower.embeddings.token_embedding, tower.embeddings.position_embedding.weight
    return CausalTower(tuple(blocks), table, positions, lambda x: model.text_projection(tower.final_layer_norm(x)))


def _bidirectional(tower: Any) -> Callable[[Tensor, Tensor], Tensor]:
    def run(vectors: Tensor, _: Tensor) -> Tensor:
        hidden = tower.encoder(inputs_embeds=tower.embeddings(inputs_embeds=vectors)).last_hidden_state
        features: Tensor = tower.head(tower.final_layer_norm(hidden[:, -1]))  # the last position, even if it is padding
        return features

    return run
