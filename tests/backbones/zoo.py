"""A small random model for each family of `poise.backbones.families`, and the features that its own library computes.

`python -m tests.backbones.zoo` loads all of them and prints the table of docs/models.md, which it stores in
docs/parity.json. The weights are random: the table says that poise computes what the library computes, and nothing
about how good a model is. Vocabularies are small stand-ins with the special tokens of the real ones.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
from open_clip.coca_model import CoCa
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer, canonicalize_text
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from poise.backbones import load_model
from poise.backbones.families import FAMILIES
from poise.prompts import init_prompt, tokenise
from poise.views import plan_views
from poise.views.pil.crops import make_views
from tests.backbones import saved

LABELS = ["cat", "Great White Shark", "a dog's life", "café crème", "x-ray, No. 5 🐱"]
TEMPLATE = "A photo of a {}."
SIZES = {"square": (96, 96), "wide": (200, 75)}
PARITY = Path(__file__).parents[2] / "docs" / "parity.json"
SMALL = {"width": 64, "heads": 2, "layers": 2}
TOWER = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


@dataclass(frozen=True)
class Own:
    """A saved model and the features of its own library."""

    name: str  # for `load_model`
    texts: Callable[[Sequence[str]], Tensor]
    images: Callable[[Sequence[Image.Image]], Tensor]


@dataclass(frozen=True)
class Row:
    """How to make a model of one family."""

    make: Callable[[Path], Own]
    quick: bool = False  # part of the default run of the tests
    onnx: bool = True  # whether `poise export onnx` accepts it
    openvino: bool = True


def pictures() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in SIZES.values()]


@contextlib.contextmanager
def shallow() -> Iterator[None]:
    """Make timm's towers as shallow as they allow; real ones would take minutes."""
    import timm

    create = timm.create_model

    def made(name: str, *args: Any, **options: Any) -> Any:
        for less in ({"depth": 2}, {"depths": (1, 1, 1, 1)}, {"layers": (1, 1, 1, 1)}, {}):
            try:
                return create(name, *args, **options, **less)
            except (TypeError, AssertionError, ValueError):
                continue
        raise AssertionError(name)

    timm.create_model = made
    try:
        yield
    finally:
        timm.create_model = create


def of_open_clip(
    architecture: str,
    *,
    tokenizer: Callable[[], Any] | None = None,
    tower: dict[str, Any] | None = None,
    change: dict[str, Any] | None = None,
    preprocess: dict[str, Any] | None = None,
) -> Callable[[Path], Own]:
    """Return how to make a small version of an architecture of open_clip.

    Args:
        architecture: its name.
        tokenizer: the stand-in of its tokenizer; None for CLIP's own.
        tower: configuration of its text tower, if that is one of transformers.
        change: keys of model_cfg, vision_cfg and text_cfg ("text_cfg.width") with other values.
        preprocess: open_clip's options of the preprocessing.
    """

    def make(folder: Path) -> Own:
        config = copy.deepcopy(open_clip.get_model_config(architecture))
        words = None if tokenizer is None else tokenizer()
        _shrink(config, words, hugging_face=tower is not None)
        for key, value in (change or {}).items():
            *section, last = key.split(".")
            (config[section[0]] if section else config)[last] = value
        folder.mkdir(parents=True, exist_ok=True)
        if words is not None:
            words.save_pretrained(folder)
        if tower is not None:
            (folder / "text").mkdir()
            size = {"vocab_size": len(words) + 3, "pad_token_id": words.pad_token_id}
            (folder / "text" / "config.json").write_text(json.dumps(tower | size))
        chosen = preprocess or {}
        (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": chosen}))
        model = _model(config, folder)
        state = {key: value.clone().contiguous() for key, value in model.state_dict().items()}
        save_file(state, folder / "open_clip_model.safetensors", metadata={"format": "pt"})
        text = config["text_cfg"]
        length = config.get("multimodal_cfg", text).get("context_length", 77)
        options = text.get("tokenizer_kwargs", {})
        read = SimpleTokenizer(context_length=length) if words is None else HFTokenizer(str(folder), length, **options)
        side = model.visual.image_size
        transform = image_transform_v2(PreprocessCfg(size=side, **chosen), is_train=False)
        return Own(
            f"local-dir:{folder}",
            lambda texts: model.encode_text(read(list(texts)), normalize=True),
            lambda images: model.encode_image(torch.stack([transform(image) for image in images]), normalize=True),
        )

    return make


def _shrink(config: dict[str, Any], words: Any, *, hugging_face: bool) -> None:
    vision, text = config["vision_cfg"], config["text_cfg"]
    if "timm_model_name" not in vision:
        small = {"width": 64, "head_width": 32, "image_size": 64, "patch_size": 16}
        layers: Any = [1, 1, 1, 1] if isinstance(vision["layers"], list) else 2
        vision.update(small if layers == 2 else {"width": 16, "head_width": 32, "image_size": 64}, layers=layers)
        config["embed_dim"] = 64
        if "attn_pooler_heads" in vision:
            vision["attn_pooler_heads"] = 2
    if not hugging_face:
        whole = config["embed_dim"] if text.get("proj_type") == "none" else 64
        text.update(SMALL, width=whole)
        if words is not None:
            text["vocab_size"] = len(words) + 3
    if "multimodal_cfg" in config:
        config["multimodal_cfg"].update(width=64, heads=2, layers=1, attn_pooler_heads=2)


def _model(config: dict[str, Any], folder: Path) -> Any:
    torch.manual_seed(3)
    config = copy.deepcopy(config)
    text = config["text_cfg"]
    custom = config.pop("custom_text", False) or "hf_model_name" in text
    if "hf_model_name" in text:
        text.update(hf_model_name=str(folder / "text"), hf_model_pretrained=False)
    config["vision_cfg"].pop("timm_model_pretrained", None)
    kind = CoCa if "multimodal_cfg" in config else open_clip.CustomTextCLIP if custom else open_clip.CLIP
    model = kind(**config).eval()
    saved.wake(model)
    with torch.no_grad():
        for name, buffer in model.named_buffers():  # as if batch norms were trained
            if name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
    return model


def of_transformers(
    save: Callable[[Path], Any], *, length: int, clean: Callable[[str], str] = str
) -> Callable[[Path], Own]:
    """Return how to make a model of transformers that reads texts padded to ``length``, or to the longest (0)."""

    def make(folder: Path) -> Own:
        import transformers

        model = save(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")

        def texts(given: Sequence[str]) -> Tensor:
            padding = {"padding": "max_length", "max_length": length} if length else {"padding": True}
            inputs = tokenizer([clean(text) for text in given], **padding, return_tensors="pt")
            return unit(model.get_text_features(**inputs))

        def images(given: Sequence[Image.Image]) -> Tensor:
            return unit(model.get_image_features(**processor(images=list(given), return_tensors="pt")))

        return Own(f"transformers:{folder}", texts, images)

    return make


def unit(output: Any) -> Tensor:
    features = output if isinstance(output, Tensor) else output.pooler_output
    return torch.nn.functional.normalize(features, dim=-1)


def pocket(folder: Path) -> Own:
    from poise.backbones.loaders.pocket import FOLDER

    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{FOLDER}")
    model.eval()
    read = open_clip.get_tokenizer(f"local-dir:{FOLDER}")
    return Own(
        "pocket",
        lambda texts: model.encode_text(read(list(texts)), normalize=True),
        lambda images: model.encode_image(torch.stack([transform(image) for image in images]), normalize=True),
    )


SQUASH = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}
BERT = TOWER | {"model_type": "bert", "max_position_embeddings": 300, "type_vocab_size": 2}
ROBERTA = TOWER | {
    "model_type": "roberta",
    "max_position_embeddings": 100,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
}
T5 = {
    "model_type": "mt5",
    "d_model": 64,
    "d_kv": 32,
    "d_ff": 128,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 2,
}
NLLB = {
    "model_type": "m2m_100",
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "max_position_embeddings": 128,
}
LINEAR = {"text_cfg.hf_proj_type": "linear", "text_cfg.hf_pooler_type": "mean_pooler"}
ROWS = {
    "vit": Row(of_open_clip("ViT-B-32"), quick=True),
    "quickgelu": Row(of_open_clip("ViT-B-16-quickgelu"), quick=True),
    "giant": Row(of_open_clip("ViT-g-14", change={"vision_cfg.mlp_ratio": 4.5})),
    "resnet": Row(of_open_clip("RN50-quickgelu"), quick=True),
    "clipa": Row(of_open_clip("ViT-L-14-CLIPA", tokenizer=saved.bert_tokenizer, preprocess=SQUASH), quick=True),
    "worldwide": Row(of_open_clip("ViT-L-14-worldwide", tokenizer=saved.t5_tokenizer), quick=True),
    "eva": Row(of_open_clip("EVA02-B-16")),
    "mobileclip": Row(of_open_clip("MobileCLIP-S1")),
    "mobileclip2": Row(of_open_clip("MobileCLIP2-S0")),
    "mobileclip-b": Row(of_open_clip("MobileCLIP2-B")),
    "mobileclip-l": Row(of_open_clip("MobileCLIP2-L-14")),
    "pe-tiny": Row(of_open_clip("PE-Core-T-16-384", preprocess=SQUASH)),
    "pe": Row(of_open_clip("PE-Core-B-16", preprocess=SQUASH)),
    "siglip": Row(of_open_clip("ViT-B-16-SigLIP", tokenizer=saved.siglip_tokenizer, preprocess=SQUASH)),
    "siglip2": Row(of_open_clip("ViT-B-32-SigLIP2-256", tokenizer=saved.gemma_tokenizer, preprocess=SQUASH)),
    "siglip-i18n": Row(of_open_clip("ViT-B-16-SigLIP-i18n-256", tokenizer=saved.t5_tokenizer, preprocess=SQUASH)),
    "siglip-so400m-i18n": Row(
        of_open_clip(
            "ViT-SO400M-16-SigLIP-i18n-256",
            tokenizer=saved.t5_tokenizer,
            preprocess=SQUASH,
            change={
                "embed_dim": 768,
                "text_cfg.width": 768,
                "vision_cfg.timm_model_name": "vit_base_patch16_siglip_256",
            },
        )
    ),
    "vitamin": Row(of_open_clip("ViTamin-S")),
    "convnext": Row(of_open_clip("convnext_tiny")),
    "convnext-d": Row(of_open_clip("convnext_large_d", change={"vision_cfg.timm_model_name": "convnext_tiny"})),
    "swin": Row(of_open_clip("swin_base_patch4_window7_224")),
    "relpos": Row(of_open_clip("vit_relpos_medium_patch16_cls_224")),
    "gap": Row(of_open_clip("vit_medium_patch16_gap_256")),
    "coca": Row(of_open_clip("coca_ViT-B-32"), quick=True),
    "coca-roberta": Row(of_open_clip("coca_roberta-ViT-B-32", tokenizer=saved.roberta_tokenizer, tower=ROBERTA)),
    "roberta": Row(of_open_clip("roberta-ViT-B-32", tokenizer=saved.roberta_tokenizer, tower=ROBERTA, change=LINEAR)),
    "xlm-roberta": Row(
        of_open_clip(
            "xlm-roberta-base-ViT-B-32",
            tokenizer=saved.multilingual_tokenizer,
            tower=ROBERTA | {"model_type": "xlm-roberta"},
            change=LINEAR,
        )
    ),
    "mt5": Row(of_open_clip("mt5-base-ViT-B-32", tokenizer=saved.t5_tokenizer, tower=T5, change=LINEAR), quick=True),
    "nllb": Row(of_open_clip("nllb-clip-base", tokenizer=saved.nllb_tokenizer, tower=NLLB)),
    "nllb-siglip": Row(
        of_open_clip("nllb-clip-base-siglip", tokenizer=saved.nllb_tokenizer, tower=NLLB, preprocess=SQUASH)
    ),
    "biomedclip": Row(
        of_open_clip(
            "roberta-ViT-B-32",
            tokenizer=saved.bert_tokenizer,
            tower=BERT,
            change={
                "text_cfg.hf_proj_type": "mlp",
                "text_cfg.hf_pooler_type": "cls_last_hidden_state_pooler",
                "text_cfg.context_length": 256,
                "vision_cfg": {
                    "timm_model_name": "vit_base_patch16_224",
                    "timm_pool": "",
                    "timm_proj": "linear",
                    "image_size": 224,
                },
            },
        ),
        quick=True,
    ),
    "hf-clip": Row(of_transformers(saved.save_clip, length=0), quick=True),
    "hf-longclip": Row(of_transformers(lambda folder: saved.save_clip(folder, length=248), length=0)),
    "hf-metaclip2": Row(of_transformers(saved.save_metaclip, length=0), quick=True),
    "hf-siglip": Row(of_transformers(saved.save_siglip, length=64), quick=True),
    "hf-siglip2": Row(
        of_transformers(
            lambda folder: saved.save_siglip(folder, tokenizer=saved.gemma_tokenizer()),
            length=64,
            clean=canonicalize_text,
        ),
        quick=True,
    ),
    "hf-naflex": Row(
        of_transformers(
            lambda folder: saved.save_siglip(folder, version=2, tokenizer=saved.gemma_tokenizer()),
            length=64,
            clean=canonicalize_text,
        ),
        quick=True,
        onnx=False,
        openvino=False,
    ),
    "pocket": Row(pocket, quick=True),
}


@dataclass(frozen=True)
class Compared:
    """One row of the table."""

    text: float  # largest difference of the unit text features
    image: float
    context: int
    causal: bool  # whether labels share the computation of the words before them
    deep: bool  # whether the image tower accepts prompts (MaPLe)


def compare(encoder: Any, own: Own) -> Compared:
    """Compare an encoder's features with those of its library."""
    from poise.backbones.text.shared_prefix import SharedPrefix

    classes = tokenise(encoder, LABELS, TEMPLATE)
    with torch.no_grad():
        texts = encoder.encode_classes(classes, init_prompt(encoder, classes))[0]
        theirs = own.texts([TEMPLATE.format(label) for label in LABELS])
        images = [make_views(image, encoder.image, plan_views(image.size, views=1)) for image in pictures()]
        image_features = encoder.encode_images(torch.stack(images))[:, 0]
        their_images = own.images(pictures())
    assert texts.shape == theirs.shape
    assert float((texts[0] - texts[1]).abs().max()) > 1e-3, "the texts can't be told apart"
    assert float((image_features[0] - image_features[1]).abs().max()) > 1e-6, "the images can't be told apart"
    return Compared(
        float((texts - theirs).abs().max()),
        float((image_features - their_images).abs().max()),
        encoder.context_length,
        isinstance(encoder.text.forward, SharedPrefix),
        encoder.prompted_tower is not None,
    )


def tuned(encoder: Any) -> None:
    """Run the published method and the default one on a wide image."""
    from poise import Classifier

    for result in Classifier(LABELS, encoder, ["tpt", "kld+cats"], views=4)(pictures()[1]).values():
        assert not result.details or np.isfinite(result.confidence)
        assert 0.999 < sum(result.probabilities.values()) < 1.001


def exported(row: Row, encoder: Any, folder: Path) -> None:
    """Export to ONNX and load with OpenVINO, where the row says that they work; elsewhere both must refuse."""
    from poise import Classifier, PoiseError
    from poise.export import export_onnx, open_onnx

    classify = Classifier(LABELS, encoder, "zero-shot")
    wanted = classify.predict_proba(pictures())
    for kind, works in (("onnx", row.onnx), ("openvino", row.openvino)):
        with contextlib.nullcontext() if works else pytest.raises(PoiseError):
            if kind == "onnx":
                export_onnx(classify, folder / "x.onnx")
                found = open_onnx(folder / "x.onnx").predict_proba(pictures())
            else:
                other = Classifier(LABELS, load_model(encoder.name, device="openvino"), "zero-shot")
                found = other.predict_proba(pictures())
        if works:
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def main() -> None:
    """Compare all rows, or those named, and store the table; ``--no-export`` leaves ONNX and OpenVINO out."""
    stored = json.loads(PARITY.read_text()) if PARITY.exists() else {}
    asked, without_export = sys.argv[1:], "--no-export" in sys.argv
    chosen = [key for key in asked if key in ROWS] or list(ROWS)
    for family in (family for family in FAMILIES if family.key in chosen):
        began, made = time.perf_counter(), ROWS[family.key]
        with tempfile.TemporaryDirectory() as folder, shallow():
            own = made.make(Path(folder) / "model")
            encoder = load_model(own.name, device="cpu")
            row = compare(encoder, own)
            tuned(encoder)
            if not without_export:
                exported(made, encoder, Path(folder))
        assert max(row.text, row.image) <= 1e-5, (family.key, row)
        took = time.perf_counter() - began
        sys.stdout.write(f"{family.key:20} text {row.text:.0e}  image {row.image:.0e}  {took:.0f} s\n")
        kept = {key: value for key, value in stored.get(family.key, {}).items() if key in ("onnx", "openvino")}
        stored[family.key] = (
            kept
            | dataclasses.asdict(row)
            | {
                "text": f"{row.text:.0e}",
                "image": f"{row.image:.0e}",
            }
        )
        if not without_export:
            stored[family.key] |= {"onnx": made.onnx, "openvino": made.openvino}
        stored["versions"] = {name: version(name) for name in ("open_clip_torch", "transformers", "timm", "torch")}
        PARITY.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
