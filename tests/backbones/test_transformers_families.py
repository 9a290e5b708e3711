"""Checkpoints of transformers answer as transformers does, whatever version saved them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.errors import InvalidCheckpointError, ModelNotFoundError
from poise.prompts import init_prompt, tokenise
from poise.types import PatchGrid
from poise.views import ViewRecipe, plan_views
from poise.views.patches import grid_shape, image_of, pack, unpack
from poise.views.pil.crops import make_views
from poise.views.pixels import pixels_of
from tests.backbones.saved import gemma_tokenizer, save_clip, save_metaclip, save_siglip

LABELS = ["cat", "Great White Shark", "a dog's life", "café crème", "x-ray, №5 🐱"]
SHAPES = {"1:1": (64, 64), "3:4": (60, 80), "16:9": (160, 90), "4:1": (128, 32)}


def noise(size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def text_features(encoder: Any, template: str = "{}") -> torch.Tensor:
    classes = tokenise(encoder, LABELS, template, context="none")
    return encoder.encode_classes(classes, init_prompt(encoder, classes))[0]


def image_features(encoder: Any, image: Image.Image) -> torch.Tensor:
    return encoder.encode_images(make_views(image, encoder.image, plan_views(image.size, views=1))[None])[0]


@pytest.mark.parametrize("save", [save_clip, save_siglip])
def test_folders_that_transformers_5_saved(save, tmp_path: Path) -> None:
    import transformers

    save(tmp_path / "old")
    (tmp_path / "new").mkdir()
    transformers.AutoProcessor.from_pretrained(tmp_path / "old").save_pretrained(tmp_path / "new")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tmp_path / "old" / name, tmp_path / "new" / name)
    assert not (tmp_path / "new" / "preprocessor_config.json").exists()
    one, other = (load_model(f"transformers:{tmp_path / name}", device="cpu") for name in ("old", "new"))
    assert fingerprint(one) == fingerprint(other)
    (tmp_path / "new" / "processor_config.json").unlink()
    with pytest.raises(ModelNotFoundError, match=r"neither processor_config\.json nor preprocessor_config\.json"):
        load_model(f"transformers:{tmp_path / 'new'}", device="cpu")


def test_a_hub_repository_that_transformers_5_saved_is_downloaded_whole() -> None:
    from poise.backbones.loaders import transformers as loader

    assert {"processor_config.json", "preprocessor_config.json"} <= set(loader.HUB_FILES)


def test_a_processor_that_makes_other_sizes_is_refused(tmp_path: Path) -> None:
    save_clip(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"size": {"shortest_edge": 40}}))
    with pytest.raises(InvalidCheckpointError, match=r"\[32, 40\] pixels, the model reads 32"):
        load_model(f"transformers:{tmp_path}", device="cpu")


def save_open_clip_twin(model: Any, folder: Path, tokenizer: Any) -> None:
    """Save open_clip's SigLIP with the text tower of a SiglipModel of transformers."""
    from safetensors.torch import save_file

    text = model.config.text_config
    config = {
        "embed_dim": 32,
        "custom_text": True,
        "init_logit_bias": -10.0,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
        "text_cfg": {
            "context_length": text.max_position_embeddings,
            "vocab_size": text.vocab_size,
            "width": text.hidden_size,
            "heads": text.num_attention_heads,
            "layers": text.num_hidden_layers,
            "mlp_ratio": text.intermediate_size / text.hidden_size,
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": text.layer_norm_eps},
            "act_kwargs": {"approximate": "tanh"},
            "hf_tokenizer_name": "here",
            "tokenizer_kwargs": {"clean": "canonicalize"},  # as open_clip's own configurations of SigLIP 2
        },
    }
    twin = open_clip.CustomTextCLIP(
        **{key: value for key, value in json.loads(json.dumps(config)).items() if key != "custom_text"}
    )
    theirs, ours = model.text_model, twin.text
    with torch.no_grad():
        ours.token_embedding.weight.copy_(theirs.embeddings.token_embedding.weight)
        ours.positional_embedding.copy_(theirs.embeddings.position_embedding.weight)
        for block, layer in zip(ours.transformer.resblocks, theirs.encoder.layers, strict=True):
            parts = [getattr(layer.self_attn, f"{name}_proj") for name in "qkv"]
            block.attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
            block.attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            for to, source in (
                (block.attn.out_proj, layer.self_attn.out_proj),
                (block.ln_1, layer.layer_norm1),
                (block.ln_2, layer.layer_norm2),
                (block.mlp.c_fc, layer.mlp.fc1),
                (block.mlp.c_proj, layer.mlp.fc2),
            ):
                to.load_state_dict(source.state_dict())
        ours.ln_final.load_state_dict(theirs.final_layer_norm.state_dict())
        ours.text_projection.load_state_dict(theirs.head.state_dict())
    tokenizer.save_pretrained(folder)
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    save_file(
        {key: value.contiguous() for key, value in twin.state_dict().items()}, folder / "open_clip_model.safetensors"
    )


def test_siglip_2_reads_texts_as_open_clip_does(tmp_path: Path) -> None:
    tokenizer = gemma_tokenizer()
    model = save_siglip(tmp_path / "hf", tokenizer=tokenizer)
    save_open_clip_twin(model, tmp_path / "oc", tokenizer)
    one = load_model(f"transformers:{tmp_path / 'hf'}", device="cpu")
    other = load_model(f"local-dir:{tmp_path / 'oc'}", device="cpu")
    assert one.token_ids(["Cat.", "A  CAT_fish!"]) == one.token_ids(["cat", "a cat fish"])
    assert one.token_ids(["a Cat."]) == other.token_ids(["a Cat."])
    for template in ("{}", "A photo of a {}.", "This is a photo of {}!"):
        assert (text_features(one, template) - text_features(other, template)).abs().max() <= 1e-5
    assert one.text_cleaning == other.text_cleaning == "canonicalize"


def test_siglip_keeps_what_its_own_tokenizer_does(tmp_path: Path) -> None:
    save_siglip(tmp_path)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    assert encoder.text_cleaning == ""
    assert encoder.token_ids(["cat."]) != encoder.token_ids(["cat"])  # the stand-in keeps punctuation


@pytest.mark.parametrize("shape", SHAPES)
def test_naflex_reads_images_in_their_own_aspect_ratio(shape: str, tmp_path: Path) -> None:
    import transformers

    model = save_siglip(tmp_path, version=2)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    image = noise(SHAPES[shape])
    # transformers resizes with Pillow or with torchvision, which rounds some pixels to the next grey level.
    inputs, default = (
        transformers.AutoImageProcessor.from_pretrained(tmp_path, backend=backend)(images=image, return_tensors="pt")
        for backend in ("pil", "torchvision")
    )
    assert (inputs["pixel_values"] - default["pixel_values"]).abs().max() <= 2.01 / 255 / 0.5
    with torch.no_grad():
        theirs = model.get_image_features(**inputs).pooler_output
    theirs = torch.nn.functional.normalize(theirs, dim=-1)
    assert (image_features(encoder, image) - theirs).abs().max() <= 1e-5
    if shape != "1:1":  # the square that was read before differs by much more
        squashed = image_features(encoder, image.resize((64, 64), Image.Resampling.BILINEAR))
        assert (squashed - theirs).abs().max() > 1e-3


def test_naflex_views_of_several_shapes_in_one_batch(tmp_path: Path) -> None:
    save_siglip(tmp_path, version=2)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu", dtype="float64")
    recipe = ViewRecipe(views=3, seed=1)
    images = [noise(size) for size in SHAPES.values()]
    plans = [plan_views(image.size, views=3, seed=1) for image in images]
    pixels = [np.array(image) for image in images]
    views = recipe.cut(pixels, plans, encoder.image, torch.device("cpu"), torch.float64)
    together = encoder.encode_images(views)
    for row, image, plan in zip(range(len(images)), images, plans, strict=True):
        alone = encoder.encode_images(make_views(image, encoder.image, plan)[None].double())[0]
        assert (together[row] - alone).abs().max() <= 1e-9
    crop = pixels_of(views[0, 1], encoder.image)
    assert crop.shape == (3, 32, 32)  # crops are square, of the largest square grid


@pytest.mark.parametrize("size", [(1, 1), (5000, 1), (3, 4000), (64, 64), (640, 480), (1920, 1080), (333, 1000)])
@pytest.mark.parametrize(("patch", "most"), [(16, 256), (14, 100), (8, 1024)])
def test_the_grid_is_that_of_transformers(size: tuple[int, int], patch: int, most: int) -> None:
    from transformers.models.siglip2.image_processing_siglip2 import get_image_size_for_max_num_patches

    height, width = get_image_size_for_max_num_patches(size[1], size[0], patch, most)
    assert grid_shape(size, PatchGrid(patch, most)) == (height // patch, width // patch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_patches_survive_packing_in_every_dtype(dtype: torch.dtype) -> None:
    grid = PatchGrid(2, 1000)
    for rows, columns in ((1, 1), (1, 1000), (999, 1), (31, 31), (25, 40)):
        image = torch.randn(3, rows * 2, columns * 2).to(dtype)
        view = pack(image, grid)
        assert view.shape == (3, grid.size, grid.size)
        patches, shapes = unpack(view[None], grid)
        assert shapes.tolist() == [[rows, columns]]
        assert patches.shape[1] == rows * columns
        assert torch.equal(image_of(view, grid), image)


def test_metaclip_2(tmp_path: Path) -> None:
    import transformers

    model = save_metaclip(tmp_path)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    assert encoder.activation == "softmax"
    image = noise((50, 37))
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, backend="pil")
    tokens = transformers.AutoTokenizer.from_pretrained(tmp_path)(LABELS, padding=True, return_tensors="pt")
    inputs = {**processor(images=image, return_tensors="pt"), **tokens}
    with torch.no_grad():
        theirs = model(**inputs)
    assert (text_features(encoder) - theirs.text_embeds).abs().max() <= 1e-5
    assert (image_features(encoder, image) - theirs.image_embeds).abs().max() <= 1e-5
