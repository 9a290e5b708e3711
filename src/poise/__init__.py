"""Trustworthy confidence for CLIP-like vision-language models."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise.backbones import load_model
    from poise.errors import PoiseError
    from poise.inference.classifier import Classifier, Result
    from poise.inference.pipelines import pipeline

__version__ = "0.1.0"
__all__ = ["Classifier", "PoiseError", "Result", "__version__", "load_model", "pipeline"]

_HOMES = {
    "Classifier": "poise.inference.classifier",
    "PoiseError": "poise.errors",
    "Result": "poise.inference.classifier",
    "load_model": "poise.backbones",
    "pipeline": "poise.inference.pipelines",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import poise`` and ``poise --help`` stay free of torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'poise' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
