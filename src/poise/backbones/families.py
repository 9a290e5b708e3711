"""The families of CLIP-like models: those that load, with a name to copy for each, and those that do not, and why.

`poise list models`, the messages about unknown names and docs/models.md read these rows. tests/backbones/zoo.py has a
small model with random weights for each row, and compares it with the library that it comes from.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Models that are built alike."""

    key: str  # of its row in tests/backbones/zoo.py
    title: str
    name: str  # a model to copy
    trait: str  # what tells it from the others


FAMILIES = (
    Family("vit", "CLIP", "ViT-B-16/laion2b_s34b_b88k", "the usual CLIP: causal text, read at its end"),
    Family("quickgelu", "CLIP of OpenAI, DFN, MetaCLIP", "ViT-B-16/openai", "QuickGELU, which the weights need"),
    Family("giant", "CLIP, very large", "ViT-g-14/laion2b_s34b_b88k", "other widths of the MLPs"),
    Family("resnet", "CLIP ResNet", "RN50/openai", "ResNet with attention pooling"),
    Family("clipa", "CLIPA", "ViT-L-14-CLIPA/datacomp1b", "BERT's vocabulary, 32 tokens, mean of patches"),
    Family(
        "worldwide",
        "MetaCLIP 2",
        "ViT-H-14-worldwide/metaclip2_worldwide",
        "mT5's vocabulary, read at its end token",
    ),
    Family("eva", "EVA", "EVA02-B-16/merged2b_s8b_b131k", "timm ViT with rotary positions and SwiGLU"),
    Family("mobileclip", "MobileCLIP", "MobileCLIP-S1/datacompdr", "FastViT; text without a causal mask"),
    Family("mobileclip2", "MobileCLIP 2", "MobileCLIP2-S0/dfndr2b", "FastViT; text without a causal mask"),
    Family("mobileclip-b", "MobileCLIP, ViT", "MobileCLIP2-B/dfndr2b", "ViT with a convolutional stem"),
    Family(
        "mobileclip-l",
        "MobileCLIP 2, large",
        "MobileCLIP2-L-14/dfndr2b",
        "timm ViT; text without a causal mask",
    ),
    Family(
        "pe-tiny",
        "Perception Encoder, small",
        "PE-Core-S-16-384/meta",
        "32 tokens, attention pooling, 384 pixels",
    ),
    Family("pe", "Perception Encoder", "PE-Core-B-16/meta", "32 or 72 tokens, rotary positions"),
    Family("siglip", "SigLIP", "ViT-B-16-SigLIP/webli", "sigmoid with bias, 64 tokens, reads padding"),
    Family("siglip2", "SigLIP 2", "ViT-B-16-SigLIP2/webli", "Gemma's vocabulary, texts canonicalised"),
    Family(
        "siglip-i18n",
        "SigLIP, multilingual",
        "ViT-B-16-SigLIP-i18n-256/webli",
        "mT5's vocabulary",
    ),
    Family(
        "siglip-so400m-i18n",
        "SigLIP SO400M, multilingual",
        "ViT-SO400M-16-SigLIP-i18n-256/webli",
        "no text projection",
    ),
    Family("vitamin", "ViTamin", "ViTamin-S/datacomp1b", "convolutions, then attention"),
    Family(
        "convnext",
        "ConvNeXt",
        "convnext_base_w/laion2b_s13b_b82k",
        "convolutional image tower",
    ),
    Family("convnext-d", "ConvNeXt, large", "convnext_large_d/laion2b_s26b_b102k_augreg", "MLP projection"),
    Family("swin", "Swin", "local-dir:PATH", "attention in windows; no published weights"),
    Family("relpos", "ViT, relative positions", "local-dir:PATH", "no published weights"),
    Family("gap", "ViT, mean of patches", "local-dir:PATH", "no class token; no published weights"),
    Family(
        "coca",
        "CoCa",
        "coca_ViT-B-32/laion2b_s13b_b90k",
        "the two encoders; a class token after the text",
    ),
    Family("coca-roberta", "CoCa with RoBERTa", "local-dir:PATH", "text tower of transformers"),
    Family(
        "roberta",
        "CLIP with RoBERTa",
        "roberta-ViT-B-32/laion2b_s12b_b32k",
        "text of transformers, mean of tokens",
    ),
    Family("xlm-roberta", "CLIP with XLM-R", "xlm-roberta-base-ViT-B-32/laion5b_s13b_b90k", "100 languages"),
    Family("mt5", "CLIP with mT5", "hf-hub:ORG/REPO", "relative positions: no largest length of its own"),
    Family("nllb", "NLLB-CLIP", "nllb-clip-base/v1", "200 languages"),
    Family(
        "nllb-siglip",
        "NLLB-CLIP with SigLIP",
        "nllb-clip-base-siglip/v1",
        "200 languages, sigmoid",
    ),
    Family(
        "biomedclip",
        "BiomedCLIP",
        "hf-hub:microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        "BERT, read at its first token, 256 tokens; pickle only: see `poise convert model`",
    ),
    Family(
        "hf-clip",
        "CLIP of transformers",
        "transformers:openai/clip-vit-base-patch16",
        "and its many fine-tuned versions",
    ),
    Family("hf-longclip", "LongCLIP", "transformers:PATH", "248 tokens"),
    Family(
        "hf-metaclip2",
        "MetaCLIP 2 of transformers",
        "transformers:facebook/metaclip-2-worldwide-huge-quickgelu",
        "XLM-V's vocabulary",
    ),
    Family("hf-siglip", "SigLIP of transformers", "transformers:google/siglip-base-patch16-224", "SentencePiece"),
    Family(
        "hf-siglip2",
        "SigLIP 2 of transformers",
        "transformers:google/siglip2-base-patch16-224",
        "texts canonicalised, as open_clip does with the same weights",
    ),
    Family(
        "hf-naflex",
        "SigLIP 2 NaFlex",
        "transformers:google/siglip2-base-patch16-naflex",
        "the plain view in its own aspect ratio, crops square",
    ),
    Family("pocket", "pocket", "pocket", "part of poise"),
)

_SIGLIP = "transformers:google/siglip2-base-patch16-224"
REFUSED = {  # model_type of a configuration, or a name -> why, and what to use instead
    "tipsv2": ("its confidence has no trained scale: the checkpoint has no logit scale", _SIGLIP),
    "chinese_clip": (
        "its text tower is read at the first token of BERT",
        "xlm-roberta-base-ViT-B-32/laion5b_s13b_b90k",
    ),
    "altclip": ("its text tower has a projection of its own", "xlm-roberta-base-ViT-B-32/laion5b_s13b_b90k"),
    "align": ("its towers, EfficientNet and BERT, are not known to poise", "ViT-B-16/openai"),
    "vision-text-dual-encoder": ("its towers may be any of transformers", "local-dir:PATH"),
    "owlvit": ("it is a detector", _SIGLIP),
    "owlv2": ("it is a detector", _SIGLIP),
    "clipseg": ("it is for segmentation", "ViT-B-16/openai"),
    "x_clip": ("it is for video", "ViT-B-16/openai"),
    "jina_clip": ("it runs code from its repository", "xlm-roberta-large-ViT-H-14/frozen_laion5b_s13b_b90k"),
    "siglip_vision_model": ("it has no text tower", _SIGLIP),
    "clip_vision_model": ("it has no text tower", "ViT-B-16/openai"),
    "dinov3_vit": ("it has no text tower; dinov3.txt runs code from its repository", _SIGLIP),
}
