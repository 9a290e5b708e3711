"""Encoders of open_clip models: ViT, ResNet and timm image towers; causal, bidirectional and Hugging Face texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from open_clip.tokenizer import HFTokenizer, SigLipTokenizer, SimpleTokenizer, get_clean_fn
from open_clip.transform import PreprocessCfg, image_transform_v2
from open_clip.transformer import ResidualAttentionBlock, TextTransformer, VisionTransformer, text_global_pool
from open_clip.version import __version__ as open_clip_version
from torch import Tensor, nn

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.encoder import Encoder, ImageSide, OwnPipeline, TextForward, TextSide, Tokenizer, Weights, freeze
from poise.backbones.loaders.checkpoint import check_scale
from poise.backbones.text.every_pair import EveryPair
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.backbones.text.vocabulary import vocabulary
from poise.backbones.vision.class_token import ClassTokenTower
from poise.backbones.vision.prompted import PromptedViT
from poise.errors import InvalidOptionError
from poise.types import ImageSpec

_OPENAI_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLEANING = ("whitespace", "lower", "canonicalize")  # open_clip's names
_OPENAI_STD = (0.26862954, 0.26130258, 0.27577711)


def wrap(
    model: Any,
    tokenizer: object,
    preprocess: dict[str, Any],
    *,
    name: str,
    device: torch.device,
    dtype: torch.dtype,
) -> Encoder:
    """Create an encoder of an open_clip CLIP or CustomTextCLIP model.

    Args:
        model: The model, which is moved to ``device`` and ``dtype``.
        tokenizer: Its open_clip tokenizer.
        preprocess: open_clip's preprocessing options: mean, std, interpolation, resize_mode.
        name: Name of the encoder.
        device: Device of the encoder.
        dtype: Dtype of the encoder.
    """
    scale = float(model.logit_scale.detach().double().exp())  # read before the weights are cast
    bias = 0.0 if model.logit_bias is None else float(model.logit_bias.detach().double())
    check_scale(name, scale, bias)
    weights = Weights.of(model, dtype)
    freeze(model, device, dtype)
    forward = class_token_tower(model.visual) or _pooled(model.visual)
    image = ImageSide(_spec(model.visual, preprocess), forward, _prompted(model.visual))
    activation = "softmax" if model.logit_bias is None else "sigmoid"
    text = _text_side(model, tokenizer)
    encoder = Encoder(name, image, text, weights, scale=scale, bias=bias, activation=activation)
    encoder.own = _own(model, tokenizer, image.spec)
    return encoder


def _own(model: Any, tokenizer: Any, spec: ImageSpec) -> OwnPipeline:
    """Return open_clip's own way from texts and images to features."""
    options = PreprocessCfg(
        size=spec.size, mean=spec.mean, std=spec.std, interpolation=spec.interpolation, resize_mode=spec.resize
    )
    weight = next(model.parameters())

    def first(output: Any) -> Tensor:
        features: Tensor = output[0] if isinstance(output, tuple) else output
        return features

    def texts(given: Sequence[str]) -> Tensor:
        return first(model.encode_text(tokenizer(list(given)).to(weight.device)))

    def images(given: Sequence[Any]) -> Tensor:
        transform = image_transform_v2(options, is_train=False)
        return first(model.encode_image(torch.stack([transform(image) for image in given]).to(weight)))

    trunk = getattr(model.visual, "trunk", model.visual)  # of timm
    inner = getattr(model, "text", None)
    text = getattr(inner, "transformer", inner) if inner is not None else model.transformer
    towers = type(trunk).__name__, type(inner if isinstance(inner, TextTransformer) else text).__name__
    return OwnPipeline(f"open_clip {open_clip_version}", towers, texts, images)


def _spec(visual: Any, preprocess: dict[str, Any]) -> ImageSpec:
    size = visual.image_size
    height, width = size if isinstance(size, Sequence) else (size, size)
    resize = preprocess.get("resize_mode") or "shortest"
    if height != width or resize not in ("shortest", "squash"):
        raise InvalidOptionError(
            f"The model needs images of {height} x {width} pixels with resize mode '{resize}'.",
            hint="Accepted: square images, resize mode 'shortest' or 'squash'.",
        )
    interpolation = preprocess.get("interpolation") or "bicubic"
    return ImageSpec(
        size=int(height),
        mean=tuple(preprocess.get("mean") or _OPENAI_MEAN),
        std=tuple(preprocess.get("std") or _OPENAI_STD),
        interpolation="bicubic" if interpolation == "random" else interpolation,
        resize=resize,
    )


def _pooled(visual: Any) -> Callable[[Tensor], Tensor]:
    """Return a tower without the tokens that CoCa's decoder reads."""
    return (lambda images: visual(images)[0]) if getattr(visual, "output_tokens", False) else visual


def _text_side(model: Any, tokenizer: object) -> TextSide:
    tower = getattr(model, "text", model)  # in CLIP, the parts of the text tower are attributes of the model
    ids, pad, cleaning = _plain_ids(tokenizer)
    fixed = False
    if not isinstance(tower, TextTransformer) and tower is not model:
        table = tower.transformer.get_input_embeddings()
        forward: TextForward = EveryPair(table, _hugging_face_text(tower))
    elif getattr(tower, "cls_emb", None) is not None:
        table, fixed = tower.token_embedding, True  # the class token follows the padding
        forward = EveryPair(table, _class_token_text(tower))
    elif getattr(tower, "use_pad_mask", False):
        raise InvalidOptionError("Text towers with a mask of padding are not supported.", hint="Use another model.")
    else:
        pool = tower.pool_type if tower is not model else model.text_pool_type
        table = tower.token_embedding
        if tower.attn_mask is not None and _has_plain_blocks(tower) and pool in ("argmax", "eos"):
            forward = SharedPrefix(causal_tower(tower))
        else:
            forward = EveryPair(table, _text_transformer(tower, pool))
            fixed = tower.attn_mask is None or pool == "last"
    # T5 has no largest length and reports 0; other towers of transformers may report more than was trained.
    lengths = [model.context_length, getattr(tokenizer, "context_length", None)]
    length = min(int(length) for length in lengths if length)
    return TextSide(ids, table, forward, length, fixed, pad, partial(vocabulary, tokenizer), cleaning)


def causal_tower(tower: Any) -> CausalTower:
    """Return the parts of open_clip's causal text transformer."""
    table, positions = tower.token_embedding, tower.positional_embedding
    return CausalTower(_blocks(tower), table, positions, lambda x: _finish(tower, tower.ln_final(x)))


def class_token_tower(visual: nn.Module) -> ClassTokenTower | None:
    """Return the parts of open_clip's ViT if it is a plain one with a class token, else None."""
    if not isinstance(visual, VisionTransformer) or visual.attn_pool is not None or visual.pool_type != "tok":
        return None
    if not _has_plain_blocks(visual) or visual.output_tokens or not isinstance(visual.patch_dropout, nn.Identity):
        return None

    def finish(token: Tensor) -> Tensor:
        normed = visual.ln_post(token)
        return normed if visual.proj is None else normed @ visual.proj

    return ClassTokenTower(
        patches=visual.conv1.weight.flatten(1),
        patch_bias=visual.conv1.bias,
        side=visual.patch_size[0],
        token=visual.class_embedding,
        positions=visual.positional_embedding,
        before=visual.ln_pre,
        blocks=_blocks(visual),
        finish=finish,
    )


def _has_plain_blocks(tower: Any) -> bool:
    return all(type(block) is ResidualAttentionBlock for block in tower.transformer.resblocks)


def _blocks(tower: Any) -> tuple[Block, ...]:
    return tuple(
        Block(
            heads=block.attn.num_heads,
            weight=block.attn.in_proj_weight,
            bias=block.attn.in_proj_bias,
            norm1=block.ln_1,
            out=block.attn.out_proj,
            norm2=block.ln_2,
            mlp=Mlp(*block.mlp),
            scale1=_scale(block.ls_1),
            scale2=_scale(block.ls_2),
        )
        for block in tower.transformer.resblocks
    )


def _scale(module: nn.Module) -> Map | None:
    return None if isinstance(module, nn.Identity) else module


def _finish(tower: Any, x: Tensor) -> Tensor:
    projection = tower.text_projection
    if projection is None:
        return x
    projected: Tensor = projection(x) if isinstance(projection, nn.Module) else x @ projection
    return projected


def _text_transformer(tower: Any, pool: str) -> Any:
    def run(vectors: Tensor, ids: Tensor) -> Tensor:
        length = vectors.shape[1]
        mask = None if tower.attn_mask is None else tower.attn_mask[:length, :length]
        x = tower.transformer(vectors + tower.positional_embedding[:length], attn_mask=mask)
        eos = getattr(tower, "eos_id", None) or getattr(tower, "text_eos_id", None)
        return _finish(tower, text_global_pool(tower.ln_final(x), ids, pool, eos_token_id=eos))

    return run


def _class_token_text(tower: Any) -> Any:
    """Return the forward pass of CoCa's text tower: a class token after the padded text, which it reads at the end."""

    def run(vectors: Tensor, ids: Tensor) -> Tensor:
        token = tower.cls_emb.expand(len(vectors), 1, -1)
        valid = ids != tower.pad_id
        # The published weights were trained with a mask that is shifted by one token.
        whole = [valid, valid.new_ones(len(ids), 1)]
        keys = torch.cat(whole if getattr(tower, "correct_cls_mask", False) else whole[::-1], 1)
        length = keys.shape[1]
        mask = torch.zeros(keys.shape, dtype=vectors.dtype, device=keys.device).masked_fill_(~keys, -torch.inf)
        mask = mask[:, None].expand(-1, length, -1).repeat_interleave(tower.heads, 0)
        if tower.attn_mask is not None:
            mask = mask + tower.attn_mask[:length, :length]
        x = torch.cat([vectors, token], 1) + tower.positional_embedding[:length]
        return _finish(tower, tower.ln_final(tower.transformer(x, attn_mask=mask)[:, -1]))

    return run


def _hugging_face_text(tower: Any) -> Any:
    def run(vectors: Tensor, ids: Tensor) -> Tensor:
        mask = (ids != tower.config.pad_token_id).long()
        out = tower.transformer(inputs_embeds=vectors, attention_mask=mask)
        features: Tensor = tower.proj(tower.pooler(out, mask))
        return features

    return run


def _plain_ids(tokenizer: Any) -> tuple[Tokenizer, int, str]:
    """Return a function from texts to ids without truncation and padding, the padding id, and how texts are cleaned."""
    if isinstance(tokenizer, SimpleTokenizer):
        start, end = tokenizer.sot_token_id, tokenizer.eot_token_id
        encode = tokenizer.encode
        return lambda texts: [[start, *encode(text), end] for text in texts], 0, _cleaning(tokenizer.clean_fn)
    if isinstance(tokenizer, HFTokenizer) and tokenizer.tokenizer_mode:
        raise InvalidOptionError(
            f"The tokenizer mode '{tokenizer.tokenizer_mode}' is not supported.",
            hint="Use a model with a plain tokenizer.",
        )
    inner = tokenizer.tokenizer
    clean = get_clean_fn("canonicalize") if isinstance(tokenizer, SigLipTokenizer) else tokenizer.clean_fn
    separator = inner.sep_token_id if getattr(tokenizer, "strip_sep_token", False) else None

    def ids(texts: Sequence[str]) -> list[list[int]]:
        cleaned = [clean(text) for text in texts]
        rows: list[list[int]] = inner(cleaned, truncation=False, padding=False, verbose=False).input_ids
        return rows if separator is None else [[0 if i == separator else i for i in row] for row in rows]

    return ids, int(inner.pad_token_id), _cleaning(clean)


def _cleaning(clean: object) -> str:
    return next((name for name in _CLEANING if get_clean_fn(name) is clean), "")


def _prompted(visual: Any) -> PromptedViT | None:
    plain = isinstance(visual, VisionTransformer) and visual.attn_pool is None
    return PromptedViT(visual) if plain else None
