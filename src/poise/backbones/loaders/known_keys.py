"""The keys of models' configuration files that poise passes on, with their types and bounds.

The bounds are well above any published model and low enough that building a model from them takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from poise.backbones.loaders.schema import (
    FLAG,
    NULL,
    Section,
    Value,
    choice,
    either,
    integer,
    items,
    mapping,
    number,
    text,
)

LARGEST_MODEL = 20_000_000_000  # parameters
LARGEST_IMAGE = 1024  # pixels per side
MOST_PATCHES = 4096  # of an image: the time of attention grows with their square
_WIDTH, _LAYERS, _HEADS = integer(1, 16_384), integer(1, 200), integer(1, 256)
_PIXELS, _TOKENS, _VOCABULARY = integer(1, LARGEST_IMAGE), integer(2, 8192), integer(2, 2_000_000)
_RATIO, _SMALL, _SHARE = number(0.01, 64), number(1e-12, 0.1), number(0, 1)
_ID = either(integer(-1, 2_000_000), NULL)
_REPOSITORY = text(r"[\w-][\w.-]{0,95}(/[\w-][\w.-]{0,95})?", "a repository name such as ORG/NAME")
_CODE = "poise runs no code from a model's folder."
_QUANTISED = "Weights must be plain safetensors in float16, bfloat16, float32 or float64."

_BLOCKS: Mapping[str, Value | Section] = {
    "mlp_ratio": _RATIO,
    "ls_init_value": either(number(0, 100), NULL),
    "final_ln_after_pool": FLAG,
    "output_tokens": FLAG,
    "act_kwargs": either(Section({"approximate": choice("none", "tanh")}), NULL),
    "norm_kwargs": either(Section({"eps": _SMALL}), NULL),
    "block_type": either(choice("default", "custom"), NULL),
    **dict.fromkeys(
        ("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"), FLAG
    ),
}
_VISION = Section(
    {
        **_BLOCKS,
        "layers": either(_LAYERS, items(_LAYERS, 4, 4)),
        "width": _WIDTH,
        "head_width": _WIDTH,
        "patch_size": either(_PIXELS, NULL),
        "image_size": either(_PIXELS, items(_PIXELS, 2, 2)),
        "patch_dropout": _SHARE,
        "attentional_pool": either(FLAG, choice("parallel", "cascade")),
        "attn_pooler_queries": integer(1, 4096),
        "attn_pooler_heads": _HEADS,
        "no_ln_pre": FLAG,
        "pos_embed_type": choice("learnable", "sin_cos_2d"),
        "pool_type": choice("tok", "avg", "none"),
        "timm_model_name": text(r"\w{1,100}(\.\w{1,100})?", "the name of one of timm's own architectures"),
        "timm_model_pretrained": FLAG,
        "timm_pool": choice("", "avg", "token", "map", "max", "avgmax", "abs_attn", "rot_attn"),
        "timm_proj": either(choice("linear", "mlp", "none", ""), NULL),
        "timm_proj_bias": FLAG,
        "timm_drop": _SHARE,
        "timm_drop_path": either(_SHARE, NULL),
    }
)
_TEXT = Section(
    {
        **_BLOCKS,
        "context_length": _TOKENS,
        "vocab_size": _VOCABULARY,
        "width": _WIDTH,
        "heads": _HEADS,
        "layers": _LAYERS,
        "embed_cls": FLAG,
        "pad_id": _ID,
        "eos_id": _ID,
        "no_causal_mask": FLAG,
        "pool_type": choice("argmax", "eos", "first", "last"),
        "proj_bias": FLAG,
        "proj_type": choice("linear", "none"),
        "hf_tokenizer_name": either(_REPOSITORY, choice(""), NULL),
        "tokenizer_mode": either(text(), NULL),
        "tokenizer_kwargs": Section(
            {"clean": choice("whitespace", "lower", "canonicalize"), "strip_sep_token": FLAG},
            refused={"trust_remote_code": _CODE, "auto_map": _CODE, "use_auth_token": "", "token": ""},
        ),
        "hf_model_name": _REPOSITORY,
        "hf_model_pretrained": FLAG,
        "hf_proj_type": either(choice("linear", "mlp"), NULL),
        "hf_pooler_type": either(
            choice("mean_pooler", "max_pooler", "cls_pooler", "cls_last_hidden_state_pooler"), NULL
        ),
    }
)
_MODEL: Mapping[str, Value | Section] = {
    "embed_dim": _WIDTH,
    "vision_cfg": _VISION,
    "text_cfg": _TEXT,
    "quick_gelu": FLAG,
    "custom_text": FLAG,
    "nonscalar_logit_scale": FLAG,
    "init_logit_scale": number(-100, 100),
    "init_logit_bias": either(number(-1000, 1000), NULL),
}
OPEN_CLIP_MODEL = Section(_MODEL, required=("embed_dim", "vision_cfg", "text_cfg"))
_COLOURS = either(items(number(-1000, 1000), 3, 3), NULL)
_POSITIVE = either(items(number(1e-6, 1000), 3, 3), NULL)
OPEN_CLIP_FILE = Section(
    {
        "model_cfg": OPEN_CLIP_MODEL,
        "preprocess_cfg": Section(
            {
                "mean": _COLOURS,
                "std": _POSITIVE,
                "interpolation": either(choice("bicubic", "bilinear", "random"), NULL),
                "resize_mode": either(choice("shortest", "squash", "longest"), NULL),
                "size": either(_PIXELS, items(_PIXELS, 2, 2), NULL),
                "mode": choice("RGB"),
                "fill_color": either(integer(0, 255), items(integer(0, 255), 3, 3)),
            }
        ),
    },
    required=("model_cfg",),
    drop_others=True,
)

_UNSAFE = {"auto_map": _CODE, "trust_remote_code": _CODE, "custom_pipelines": _CODE, "quantization_config": _QUANTISED}
_TOWER: Mapping[str, Value | Section] = {
    "hidden_size": _WIDTH,
    "intermediate_size": integer(1, 65_536),
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "hidden_act": choice("quick_gelu", "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu"),
    "layer_norm_eps": _SMALL,
    "attention_dropout": _SHARE,
    "dropout": _SHARE,
    "initializer_factor": number(0, 100),
    "initializer_range": number(0, 100),
    "projection_dim": _WIDTH,
    "model_type": text(r"(clip|metaclip_2|siglip|siglip2)(_text|_vision)?(_model)?", "a tower of CLIP or SigLIP"),
}
_TEXT_TOWER = Section(
    {
        **_TOWER,
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _TOKENS,
        "projection_size": _WIDTH,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _ID),
    },
    refused=_UNSAFE,
    drop_others=True,
)
_VISION_TOWER = Section(
    {
        **_TOWER,
        "image_size": _PIXELS,
        "patch_size": _PIXELS,
        "num_channels": choice(3),
        "num_patches": integer(1, 65_536),
        "vision_use_head": choice(True),
    },
    refused=_UNSAFE,
    drop_others=True,
)
FAMILIES = ("clip", "metaclip_2", "siglip", "siglip2")
TRANSFORMERS_MODEL = Section(
    {
        "model_type": choice(*FAMILIES),
        "projection_dim": _WIDTH,
        "logit_scale_init_value": number(-100, 100),
        "initializer_factor": number(0, 100),
        **dict.fromkeys(
            ("text_config", "text_config_dict"), _TEXT_TOWER
        ),  # the second is of older versions, and prevails
        **dict.fromkeys(("vision_config", "vision_config_dict"), _VISION_TOWER),
    },
    required=("model_type", "text_config", "vision_config"),
    refused=_UNSAFE,
    drop_others=True,
)
RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
PREPROCESSOR = Section(
    {
        "image_mean": items(number(-1000, 1000), 3, 3),
        "image_std": items(number(1e-6, 1000), 3, 3),
        "resample": choice(*RESAMPLING),
        "do_center_crop": either(FLAG, NULL),
        **dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), choice(True)),
        "rescale_factor": number(1 / 255 - 1e-6, 1 / 255 + 1e-6),
        **dict.fromkeys(
            ("size", "crop_size"),
            either(_PIXELS, mapping(choice("height", "width", "shortest_edge"), _PIXELS, 2), NULL),
        ),
        "patch_size": integer(1, 256),
        "max_num_patches": integer(1, 4096),
    },
    required=("image_mean", "image_std"),
    refused={"auto_map": _CODE, "trust_remote_code": _CODE},
    drop_others=True,
)
# Text towers of other libraries that open_clip's own names use, such as xlm-roberta-base.
HUGGING_FACE_TEXT = Section(
    {
        "model_type": choice("bert", "roberta", "xlm-roberta", "mt5", "m2m_100"),
        "vocab_size": _VOCABULARY,
        "max_position_embeddings": _TOKENS,
        "type_vocab_size": integer(1, 100),
        "layer_norm_eps": _SMALL,
        "layer_norm_epsilon": _SMALL,
        "hidden_act": _TOWER["hidden_act"],
        "activation_function": _TOWER["hidden_act"],
        "dense_act_fn": _TOWER["hidden_act"],
        "feed_forward_proj": choice("relu", "gated-gelu"),
        "position_embedding_type": choice("absolute"),
        "relative_attention_num_buckets": integer(1, 1024),
        "relative_attention_max_distance": integer(1, 65_536),
        **dict.fromkeys(("scale_embedding", "is_gated_act", "tie_word_embeddings", "is_encoder_decoder"), FLAG),
        **dict.fromkeys(("hidden_size", "d_model", "d_kv"), _WIDTH),
        **dict.fromkeys(("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim"), integer(1, 65_536)),
        **dict.fromkeys(
            ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"), _LAYERS
        ),
        **dict.fromkeys(
            ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), _HEADS
        ),
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), _ID),
    },
    required=("model_type",),
    refused=_UNSAFE,
    drop_others=True,
)

TOKENIZERS = (
    "CLIPTokenizer",
    "SiglipTokenizer",
    "Siglip2Tokenizer",
    "GemmaTokenizer",
    "T5Tokenizer",
    "MT5Tokenizer",
    "BertTokenizer",
    "RobertaTokenizer",
    "XLMRobertaTokenizer",
    "NllbTokenizer",
    "PreTrainedTokenizer",
    "TokenizersBackend",
)
_TOKEN_TEXT = text(r"[\s\S]{0,500}", "a text of at most 500 characters")
_ADDED = Section(
    {
        "content": _TOKEN_TEXT,
        **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), FLAG),
        "__type": choice("AddedToken"),
        "id": integer(0, 2_000_000),
    },
    required=("content",),
)
_TOKEN = either(_TOKEN_TEXT, _ADDED, NULL)
_SPECIAL: Mapping[str, Value | Section] = {
    **dict.fromkeys(
        ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"), _TOKEN
    ),
    "additional_special_tokens": either(items(_TOKEN, 0, 2000), NULL),
}
TOKENIZER_CONFIG = Section(
    {
        **_SPECIAL,
        "tokenizer_class": choice(*TOKENIZERS, *(f"{name}Fast" for name in TOKENIZERS)),
        "model_max_length": number(1, 1e31),
        "padding_side": choice("left", "right"),
        "truncation_side": choice("left", "right"),
        "model_input_names": items(text(r"\w{1,50}", "a name"), 0, 10),
        "added_tokens_decoder": mapping(text(r"\d{1,7}", "a token id"), _ADDED, 5000),
        "extra_ids": integer(0, 1000),
        "errors": choice("replace", "strict", "ignore"),
        "backend": choice("tokenizers", "sentencepiece"),
        **dict.fromkeys(("src_lang", "tgt_lang"), either(text(r"\w{1,20}", "a language"), NULL)),
        **dict.fromkeys(
            (
                "add_prefix_space",
                "add_bos_token",
                "add_eos_token",
                "clean_up_tokenization_spaces",
                "legacy",
                "do_basic_tokenize",
                "do_lower_case",
                "keep_accents",
                "legacy_behaviour",
                "strip_accents",
                "spaces_between_special_tokens",
                "split_special_tokens",
                "tokenize_chinese_chars",
            ),
            either(FLAG, NULL),
        ),
    },
    refused={"auto_map": _CODE, "trust_remote_code": _CODE, "custom_tokenizer": _CODE},
    drop_others=True,
)
SPECIAL_TOKENS = Section(_SPECIAL, refused={"auto_map": _CODE}, drop_others=True)
