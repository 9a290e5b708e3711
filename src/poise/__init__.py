"""Trustworthy confidence for CLIP-like vision-language models.

Start with `Classifier`. `list_models`, `list_methods` and `list_datasets` return the accepted names.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poise import objectives
    from poise.backbones import list_models, load_model
    from poise.calibration import Calibration
    from poise.data import names as list_datasets
    from poise.errors import PoiseError
    from poise.inference.classifier import Classifier
    from poise.inference.pipelines import pipeline
    from poise.methods import Method
    from poise.methods import every_name as list_methods
    from poise.results import Failure, Result
    from poise.types import Outputs

__version__ = "0.1.0"
__all__ = [
    "Calibration",
    "Classifier",
    "Failure",
    "Method",
    "Outputs",
    "PoiseError",
    "Result",
    "__version__",
    "list_datasets",
    "list_methods",
    "list_models",
    "load_model",
    "objectives",
    "pipeline",
]

_HOMES = {  # public name -> module:attribute
    "Calibration": "poise.calibration:Calibration",
    "Classifier": "poise.inference.classifier:Classifier",
    "Failure": "poise.results:Failure",
    "Method": "poise.methods:Method",
    "Outputs": "poise.types:Outputs",
    "PoiseError": "poise.errors:PoiseError",
    "Result": "poise.results:Result",
    "list_datasets": "poise.data:names",
    "list_methods": "poise.methods:every_name",
    "list_models": "poise.backbones:list_models",
    "load_model": "poise.backbones:load_model",
    "objectives": "poise.objectives:",
    "pipeline": "poise.inference.pipelines:pipeline",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that ``import poise`` and ``poise --help`` do not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'poise' has no attribute '{name}'")
    return pkgutil.resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return __all__
