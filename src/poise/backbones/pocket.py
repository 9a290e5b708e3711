"""The small trained model that ships inside the package."""

from __future__ import annotations

from pathlib import Path

import torch

from poise.backbones.encoder import Encoder
from poise.errors import ModelNotFound

FOLDER = Path(__file__).parent / "weights" / "pocket"


def load_pocket(*, device: torch.device, dtype: torch.dtype) -> Encoder:
    """The encoder called ``pocket``."""
    from poise.backbones.openclip_load import load_folder

    if not FOLDER.is_dir():
        raise ModelNotFound(
            "This installation has no weights for 'pocket'.", hint="Use model='tiny' (random weights) or another model."
        )
    return load_folder(str(FOLDER), device=device, dtype=dtype, name="pocket")
