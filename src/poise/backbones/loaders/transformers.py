"""Encoders of CLIP, MetaCLIP 2, SigLIP and SigLIP 2 checkpoints of transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, OwnPipeline, TextSide, Tokenizer, Weights, freeze
from poise.backbones.families import REFUSED
from poise.backbones.loaders import hub, schema
from poise.backbones.loaders.checkpoint import (
    check_logit_scale,
    check_patches,
    check_scale,
    check_weights,
    find_weights,
    library_errors,
    read_config,
)
from poise.backbones.loaders.known_keys import FAMILIES, LARGEST_IMAGE, PREPROCESSOR, RESAMPLING, TRANSFORMERS_MODEL
from poise.backbones.loaders.tokenizer_files import FILES, clean_copy, load_tokenizer
from poise.backbones.text.cleaning import CANONICAL, canonical
from poise.backbones.text.every_pair import EveryPair
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.backbones.text.vocabulary import vocabulary
from poise.errors import InvalidCheckpointError, InvalidOptionError, ModelNotFoundError
from poise.types import ImageSpec, PatchGrid
from poise.views.patches import unpack

HUB_FILES = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    *FILES,
)
_SHARD = re.compile(r"model-\d{1,6}-of-\d{1,6}\.safetensors")
_CAUSAL = ("clip", "metaclip_2")  # families whose text tower is causal and whose loss is a softmax
_GEMMA_END = "<eos>"  # end token of Gemma's vocabulary, which SigLIP 2 has; that of T5's and mT5's is </s>


def load_transformers(
    source: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    cache_dir: str | None = None,
    logit_scale: float | None = None,
) -> Encoder:
    """Load a checkpoint from a folder that save_pretrained wrote, or from a hub repository."""
    folder = Path(source).expanduser()
    if not folder.is_dir():
        if source.startswith((".", "/", "~")):
            raise ModelNotFoundError(f"'{source}' is not a folder.", hint="Give a folder that save_pretrained wrote.")
        folder = hub.fetch_folder(source, HUB_FILES, cache_dir, needs="config.json")
    config = read_config(folder / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES:
        why, instead = REFUSED.get(str(family), ("", ""))
        hint = f"Accepted: {', '.join(FAMILIES)}.{f' The nearest that works: {instead}.' * bool(instead)}"
        reason = f", which is not supported: {why}" if why else ""
        raise InvalidOptionError(f"'{source}' is a checkpoint of the family {str(family)[:40]!r}{reason}.", hint=hint)
    processing = _processing(folder)
    checked = schema.read(TRANSFORMERS_MODEL, config, folder / "config.json")
    model, tokenizer = _model(folder, checked, logit_scale)
    causal = family in _CAUSAL
    scale = float(model.logit_scale.detach().double().exp())  # read before the weights are cast
    bias = 0.0 if causal else float(model.logit_bias.detach().double())
    check_scale(source, scale, bias)
    weights = Weights.of(model, dtype)
    freeze(model, device, dtype)
    with library_errors(folder):
        image, text = _image_side(model, processing, family), _text_side(model, tokenizer, folder, family)
    activation = "softmax" if causal else "sigmoid"
    encoder = Encoder(f"transformers:{source}", image, text, weights, scale=scale, bias=bias, activation=activation)
    encoder.own = _own(model, tokenizer, encoder, processing, family)
    encoder.token_ids(["a photo of a cat."])  # raises an error if the tokenizer is for another text tower
    return encoder


def _own(model: Any, tokenizer: Any, encoder: Encoder, processing: dict[str, Any], family: str) -> OwnPipeline:
    """Return transformers' own way from texts and images to features; SigLIP 2's texts are canonicalised first."""
    import transformers

    clean = canonical if encoder.text_cleaning == CANONICAL else str
    whole = {"padding": "max_length", "max_length": encoder.context_length}
    fixed = whole if encoder.fixed_length else {"padding": True}
    weight = model.logit_scale

    def pooled(output: Any) -> Tensor:
        features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
        return features

    def texts(given: Sequence[str]) -> Tensor:
        inputs = tokenizer([clean(text) for text in given], return_tensors="pt", **fixed).to(weight.device)
        return pooled(model.get_text_features(**{key: inputs[key] for key in tokenizer.model_input_names}))

    def images(given: Sequence[Any]) -> Tensor:
        kind = {"siglip": "Siglip", "siglip2": "Siglip2"}.get(family, "CLIP")
        processor = getattr(transformers, f"{kind}ImageProcessorPil")(**processing)
        inputs = processor(images=list(given), return_tensors="pt").to(weight.device)
        return pooled(model.get_image_features(**inputs | {"pixel_values": inputs["pixel_values"].to(weight.dtype)}))

    towers = type(model.vision_model).__name__, type(model.text_model).__name__
    return OwnPipeline(f"transformers {transformers.__version__}", towers, texts, images)


def _processing(folder: Path) -> dict[str, Any]:
    """Return the checked options of the image processor.

    transformers 5 saves them as a part of processor_config.json, which prevails; earlier ones in their own file.
    """
    file = folder / "processor_config.json"
    content = read_config(file).get("image_processor") if file.exists() else None
    if content is None:
        file = folder / "preprocessor_config.json"
        if not file.exists():
            raise ModelNotFoundError(
                f"'{folder}' has neither processor_config.json nor preprocessor_config.json.",
                hint="Save the processor too: AutoProcessor.from_pretrained(...).save_pretrained(FOLDER).",
            )
        content = read_config(file)
    return schema.read(PREPROCESSOR, content, file)


def _model(folder: Path, config: dict[str, Any], logit_scale: float | None) -> tuple[Any, Any]:
    """Return the model and the tokenizer, loaded from a clean copy of the folder."""
    from transformers import AutoConfig, AutoModel

    vision = config["vision_config"]
    check_patches(vision.get("image_size", 224), vision.get("patch_size"), f"{folder / 'config.json'}")
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
        absent = {*report["missing_keys"]}
        check_logit_scale({"logit_scale"} - absent, logit_scale, folder)
        if logit_scale is not None:
            model.logit_scale.data.fill_(math.log(logit_scale))
        missing = [f"{key}: missing" for key in sorted(absent - {"logit_scale"})]
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
    grid = None
    if family == "siglip2":
        grid = PatchGrid(vision.patch_size, int(processing.get("max_num_patches", 256)))
        if processing.get("patch_size", grid.patch) != grid.patch:
            raise InvalidCheckpointError(
                f"The image processor has patches of {processing['patch_size']} pixels, the model of {grid.patch}.",
                hint="The processor and the weights must come from the same model.",
            )
    size = vision.image_size if grid is None else grid.size
    made = {value for key in ("size", "crop_size") for value in _lengths(processing.get(key))}
    if grid is None and made - {size}:
        raise InvalidCheckpointError(
            f"The image processor makes images of {sorted(made)} pixels, the model reads {size}.",
            hint="Accepted: size and crop_size that equal the model's image_size.",
        )
    if size > LARGEST_IMAGE:
        raise InvalidCheckpointError(f"The model needs images of {size} pixels.", hint=f"Accepted: {LARGEST_IMAGE}.")
    spec = ImageSpec(
        size=int(size),
        mean=tuple(processing["image_mean"]),
        std=tuple(processing["image_std"]),
        interpolation=RESAMPLING[processing.get("resample", 3 if grid is None else 2)],
        resize="shortest" if processing.get("do_center_crop") else "squash",
        crop_offset="floor",  # as transformers' image processors crop
        grid=grid,
    )

    def encode(views: Tensor) -> Tensor:
        output = model.get_image_features(**({"pixel_values": views} if grid is None else _patches(views, grid)))
        features: Tensor = output if isinstance(output, Tensor) else output.pooler_output
        return features

    return ImageSide(spec, encode)


def _lengths(size: object) -> list[int]:
    return list(size.values()) if isinstance(size, dict) else [size] if isinstance(size, int) else []


def _patches(views: Tensor, grid: PatchGrid) -> dict[str, Tensor]:
    """Return SigLIP 2's inputs: patches [N, P, patch * patch * 3], a mask of those that exist, rows and columns."""
    patches, shapes = unpack(views, grid)
    mask = torch.arange(patches.shape[1], device=views.device) < shapes.prod(1)[:, None]
    values = patches.permute(0, 1, 3, 4, 2).flatten(2).where(mask[..., None], 0)
    return {"pixel_values": values, "pixel_attention_mask": mask.int(), "spatial_shapes": shapes}


def _text_side(model: Any, tokenizer: Any, folder: Path, family: str) -> TextSide:
    tower = model.text_model
    table = tower.embeddings.token_embedding
    length = int(model.config.text_config.max_position_embeddings)
    causal = family in _CAUSAL
    # SigLIP 2 was trained on texts in lower case without punctuation. Its tokenizers in transformers keep both, where
    # open_clip's for the same weights, and SigLIP's own tokenizer, do not.
    clean = not causal and (family == "siglip2" or tokenizer.eos_token == _GEMMA_END)
    ids, pad = _plain_ids(tokenizer, folder, right=not causal, clean=canonical if clean else str)
    forward = SharedPrefix(_causal_tower(model)) if causal else EveryPair(table, _bidirectional(tower))
    words, cleaning = partial(vocabulary, tokenizer), CANONICAL if clean else ""
    return TextSide(ids, table, forward, length, not causal, pad, words, cleaning)


def _plain_ids(
    tokenizer: Any, folder: Path, *, right: bool, clean: Callable[[str], str] = str
) -> tuple[Tokenizer, int]:
    if right and tokenizer.padding_side != "right":
        raise InvalidOptionError(f"The tokenizer in '{folder}' pads on the left.", hint="Set padding_side to 'right'.")

    def ids(texts: Sequence[str]) -> list[list[int]]:
        cleaned = [clean(text) for text in texts]
        rows: list[list[int]] = tokenizer(cleaned, padding=False, truncation=False, verbose=False)["input_ids"]
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
