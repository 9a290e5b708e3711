"""Encoders of CLIP, SigLIP and SigLIP2 checkpoints of transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, TextSide, Tokenizer, Weights, freeze
from poise.backbones.loaders import hub
from poise.backbones.loaders.checkpoint import check_readable, find_weights, read_config
from poise.backbones.text.every_pair import EveryPair
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.errors import InvalidCheckpointError, InvalidOptionError, MissingDependencyError, ModelNotFoundError
from poise.types import ImageSpec

_FAMILIES = ("clip", "siglip", "siglip2")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
_VOCABULARIES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
_RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers


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
    if family not in _FAMILIES:
        raise InvalidOptionError(
            f"'{source}' is a checkpoint of the family {family!r}.", hint=f"Accepted: {', '.join(_FAMILIES)}."
        )
    model = _model(folder)
    scale = float(model.logit_scale.detach().double().exp())  # read before the weights are cast
    bias = float(model.logit_bias.detach().double()) if family != "clip" else 0.0
    freeze(model, device, dtype)
    image, text = _image_side(model, folder, family), _text_side(model, folder, family)
    activation = "softmax" if family == "clip" else "sigmoid"
    weights = Weights.of(model)
    return Encoder(f"transformers:{source}", image, text, weights, scale=scale, bias=bias, activation=activation)


def _model(folder: Path) -> Any:
    from transformers import AutoModel

    sharded = (folder / "model.safetensors.index.json").is_file()
    files = sorted(folder.glob("model-*.safetensors")) if sharded else [find_weights(folder, ["model.safetensors"])]
    for file in files:
        check_readable(file)
    try:
        model, report = AutoModel.from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
        )
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(f"'{folder}' can't be loaded: {error}.", hint="Download it again.") from error
    wrong = [f"{key}: {tuple(a)} in the file, {tuple(b)} in the model" for key, a, b in report["mismatched_keys"]]
    wrong += [f"{key}: missing" for key in sorted(report["missing_keys"])]
    if wrong:
        raise InvalidCheckpointError(
            f"The weights in '{folder}' do not fit its configuration: {'; '.join(wrong[:5])}.",
            hint="The weights and config.json must come from the same model.",
        )
    return model


def _image_side(model: Any, folder: Path, family: str) -> ImageSide:
    processing = read_config(folder / "preprocessor_config.json")
    vision = model.config.vision_config
    grid = round(getattr(vision, "num_patches", 0) ** 0.5)  # for SigLIP2, whose input is patches instead of an image
    size = grid * vision.patch_size if family == "siglip2" else vision.image_size
    spec = ImageSpec(
        size=int(size),
        mean=tuple(processing["image_mean"]),
        std=tuple(processing["image_std"]),
        interpolation=_RESAMPLING[processing.get("resample", 3)],
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
            shapes = torch.full((len(views), 2), grid, device=views.device)
            inputs = {"pixel_values": patches, "pixel_attention_mask": mask, "spatial_shapes": shapes}
        output = model.get_image_features(**inputs)
        features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
        return features

    return ImageSide(spec, encode)


def _text_side(model: Any, folder: Path, family: str) -> TextSide:
    tower = model.text_model
    table = tower.embeddings.token_embedding
    length = int(model.config.text_config.max_position_embeddings)
    ids, pad = _tokenizer(folder, right=family != "clip")
    if family == "clip":
        return TextSide(ids, table, SharedPrefix(_causal_tower(model)), length, False, pad)
    return TextSide(ids, table, EveryPair(table, _bidirectional(tower)), length, True, pad)


def _tokenizer(folder: Path, *, right: bool) -> tuple[Tokenizer, int]:
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in _VOCABULARIES):
        # transformers would create an empty tokenizer
        raise InvalidCheckpointError(
            f"'{folder}' has no tokenizer.", hint=f"Add one of these files: {', '.join(_VOCABULARIES)}."
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise MissingDependencyError(
            f"The tokenizer in '{folder}' needs a package that is not installed: {error}.",
            hint="Install it with: pip install sentencepiece.",
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"'{folder}' has no readable tokenizer: {error}."
        raise InvalidCheckpointError(message, hint="Add its tokenizer files.") from error
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
