"""Stored features on the device of an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from poise.backbones.fingerprint import fingerprint
from poise.data.stored_features import Made
from poise.errors import InvalidOptionError
from poise.loading.sources import PlannedImage
from poise.text import counted
from poise.types import DualEncoder
from poise.views.recipe import ViewRecipe


def stacked_features(images: Sequence[PlannedImage], encoder: DualEncoder) -> Tensor | None:
    """Return the unit features [B, V, D] of images that were encoded before; None if they were not."""
    stored = [image.features for image in images if image.features is not None]
    return to_device(np.stack(stored), encoder) if stored else None


def check_made(made: Made, encoder: DualEncoder, recipe: ViewRecipe) -> None:
    """Refuse stored features of another model, or of other views than those that are asked for.

    Raises:
        InvalidOptionError: They differ; the message has both values.
    """
    found = fingerprint(encoder, like=made.fingerprint)
    if found != made.fingerprint:
        raise InvalidOptionError(
            f"The features were made by the model '{made.model}' with the fingerprint {made.fingerprint}, and "
            f"'{encoder.name}' has {found}.",
            hint="Give the model that made them, or embed the images with this one.",
        )
    if recipe.views > made.views:
        raise InvalidOptionError(
            f"{recipe.views} views were asked for, and the features have {counted(made.views, 'view')} per image.",
            hint=f"Use at most {made.views}, or embed the images with more.",
        )
    stored = {name: made.recipe.get(name) for name in ("seed", "augmix", "crops")}
    wanted = {name: getattr(recipe, name) for name in stored}
    if recipe.views > 1 and stored != wanted:
        raise InvalidOptionError(
            f"The stored views were made with {stored}, and {wanted} is asked for.",
            hint="Ask for the same, or embed the images again (--seed, --augmix).",
        )


def to_device(features: np.ndarray, encoder: DualEncoder) -> Tensor:
    """Return stored features [B, V, D] on the encoder's device, in the dtype of its features and of unit length."""
    tensor = torch.from_numpy(np.array(features)).to(encoder.device)  # a copy: those of a file can't be written to
    wide = tensor.to(torch.promote_types(encoder.dtype, torch.float32))
    return torch.nn.functional.normalize(wide, dim=-1)
