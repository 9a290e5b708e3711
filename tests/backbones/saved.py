"""Small random checkpoints, written to disk by the neighbours' own code."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
OPEN_CLIP = {
    "vit": {"embed_dim": 16, "vision_cfg": VIT, "text_cfg": TEXT},
    "quickgelu": {"embed_dim": 16, "quick_gelu": True, "vision_cfg": VIT, "text_cfg": TEXT},
    "rn": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8},
        "text_cfg": TEXT,
    },
    "custom": {"embed_dim": 16, "custom_text": True, "vision_cfg": VIT, "text_cfg": TEXT | {"proj_bias": True}},
    "timm": {
        "embed_dim": 16,
        "vision_cfg": {"timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear", "image_size": 32},
        "text_cfg": TEXT,
    },
    "siglip": {
        "embed_dim": 32,
        "custom_text": True,
        "init_logit_bias": -10.0,
        "vision_cfg": VIT,
        "text_cfg": TEXT | {"context_length": 64, "no_causal_mask": True, "pool_type": "last", "proj_bias": True},
    },
}
PREPROCESS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic", "resize_mode": "squash"}


def wake(model: torch.nn.Module) -> None:
    """Move fresh weights away from where all texts look alike."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "token_embedding" in name or "position" in name:
                parameter.mul_(10)


def save_open_clip(kind: str, folder: Path) -> Any:
    """A random open_clip model of one kind, saved in ``local-dir`` format; returns the model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = OPEN_CLIP[kind]
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": PREPROCESS}))
    torch.manual_seed(3)
    kinds = {key: value for key, value in config.items() if key != "custom_text"}
    model = (open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP)(**json.loads(json.dumps(kinds)))
    wake(model)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    return model.eval()


@functools.cache
def _simple_tokenizer() -> SimpleTokenizer:
    return SimpleTokenizer()


def save_clip(folder: Path, *, length: int = 77, merges: int | None = 1000) -> Any:
    """A random transformers CLIPModel with the first merges of CLIP's vocabulary (all take long); returns the model."""
    import transformers

    simple = _simple_tokenizer()
    known = list(simple.bpe_ranks)[:merges]
    words = [*list(simple.encoder)[: 512 + len(known)], "<|startoftext|>", "<|endoftext|>"]  # 512: bytes, twice
    transformers.CLIPTokenizer(
        vocab={word: number for number, word in enumerate(words)}, merges=known, model_max_length=length
    ).save_pretrained(folder)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends: dict[str, int] = {
        "max_position_embeddings": length,
        "vocab_size": len(words),
        "bos_token_id": len(words) - 2,
        "eos_token_id": len(words) - 1,
        "pad_token_id": len(words) - 1,
    }
    config = transformers.CLIPConfig(
        text_config=shape | ends, vision_config=shape | {"image_size": 32, "patch_size": 8}, projection_dim=16
    )
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        folder
    )
    return _save(transformers.CLIPModel, config, folder)


def save_siglip(folder: Path, *, version: int = 1, tokenizer: Any = None) -> Any:
    """A random transformers SigLIP or SigLIP2 model with a small vocabulary; returns the model."""
    import transformers

    (siglip_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    words = 300 if tokenizer is None else 400
    text = shape | {"vocab_size": words, "max_position_embeddings": 64, "projection_size": 32}
    if version == 2:
        vision = shape | {"patch_size": 8, "num_patches": 16}
        config = transformers.Siglip2Config(text_config=text, vision_config=vision)
        transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(folder)
        return _save(transformers.Siglip2Model, config, folder)
    config = transformers.SiglipConfig(text_config=text, vision_config=shape | {"image_size": 32, "patch_size": 8})
    transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return _save(transformers.SiglipModel, config, folder)


def siglip_tokenizer() -> Any:
    """A lower-casing word and letter vocabulary with an end token, in the form of SigLIP's."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,-'\u2581"]
    words = [
        f"\u2581{word}" for word in ("a", "photo", "of", "the", "cat", "dog", "this", "is", "shark", "great", "white")
    ]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0)]
    pieces += [(letter, -8.0) for letter in letters] + [(word, -3.0) for word in words]
    inner = Tokenizer(models.Unigram(pieces, unk_id=2))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="</s>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=64,
        padding_side="right",
        model_input_names=["input_ids"],  # as published: the tower reads padding too
    )


def gemma_tokenizer() -> Any:
    """A small vocabulary in the form of Gemma's: bytes for unknown letters, capitals and punctuation are kept."""
    import transformers
    from tokenizers import AddedToken, processors

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{number:02X}>" for number in range(256))]
    pieces += [*"abcdefghijklmnopqrstuvwxyzACGSW.,'\u2581é", "ca", "cat", "do", "dog", "Ca", "Cat"]
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("C", "a"), ("Ca", "t")]
    tokenizer = transformers.GemmaTokenizer(
        vocab={piece: number for number, piece in enumerate(pieces)},
        merges=merges,
        padding_side="right",
        model_max_length=64,
        model_input_names=["input_ids"],
    )
    end = AddedToken("<eos>", special=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end.content}", special_tokens=[(end.content, 1)]
    )
    return tokenizer


def multilingual_tokenizer() -> Any:
    """A small vocabulary with the special tokens of XLM-R's: <s> 0, <pad> 1, </s> 2, <unk> 3."""
    import transformers

    letters = [*"abcdefghijklmnopqrstuvwxyzACGSW0123456789.,'-éè\u2581"]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0)]
    pieces += [(letter, -8.0) for letter in letters] + [("\u2581cat", -3.0), ("\u2581a", -3.0), ("<mask>", 0.0)]
    return transformers.XLMRobertaTokenizer(vocab=pieces, model_max_length=77)


def t5_tokenizer() -> Any:
    """A small vocabulary with the special tokens of mT5's: <pad> 0, </s> 1, <unk> 2."""
    import transformers

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", -20.0), ("\u2581", -8.0)]
    pieces += [(letter, -8.0) for letter in "abcdefghijklmnopqrstuvwxyzACGSWN0123456789.,'-éè"]
    pieces += [("\u2581cat", -3.0), ("\u2581a", -3.0)]
    return transformers.T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=77)


def nllb_tokenizer() -> Any:
    """A small vocabulary with the special tokens of NLLB's: a language first, </s> last."""
    import transformers

    pieces = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    letters = [*"\u2581abcdefghijklmnopqrstuvwxyzACGSWN0123456789.,'-éè", "ca", "cat"]
    pieces |= {piece: number + 4 for number, piece in enumerate(letters)}
    return transformers.NllbTokenizer(vocab=pieces, merges=[("c", "a"), ("ca", "t")], src_lang="eng_Latn")


def bert_tokenizer() -> Any:
    """A small vocabulary with the special tokens of BERT's: [PAD] 0, [CLS], [SEP]; lower case."""
    import transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,'-"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "cat",
        "photo",
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    return transformers.BertTokenizer(vocab={word: number for number, word in enumerate(words)})


def roberta_tokenizer() -> Any:
    """All bytes and a few merges, with the special tokens of RoBERTa's: <s> 0, <pad> 1, </s> 2, <unk> 3."""
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    words = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "ca", "cat", "<mask>"]
    vocabulary = {word: number for number, word in enumerate(words)}
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=[("c", "a"), ("ca", "t")])


def save_metaclip(folder: Path) -> Any:
    """A random MetaClip2Model of transformers; returns the model."""
    import transformers

    multilingual_tokenizer().save_pretrained(folder)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = shape | {"vocab_size": 300, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    config = transformers.MetaClip2Config(
        text_config=text, vision_config=shape | {"image_size": 32, "patch_size": 8}, projection_dim=16
    )
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(
        folder
    )
    return _save(transformers.MetaClip2Model, config, folder)


def _save(kind: Any, config: Any, folder: Path) -> Any:
    torch.manual_seed(4)
    model = kind(config)
    wake(model)
    with torch.no_grad():
        model.logit_scale.fill_(2.5)
        if hasattr(model, "logit_bias"):
            model.logit_bias.fill_(-7.0)
    model.save_pretrained(folder)
    return model.eval()
