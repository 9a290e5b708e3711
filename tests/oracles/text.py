"""The plain text forward: one full-length sentence at a time through the model's own modules, nothing shared.

Works on an open_clip CLIP model. Slow on purpose; the fast path must equal it in value and gradient.
"""

from __future__ import annotations

import torch
from open_clip.model import CLIP
from torch import Tensor

from poise.types import ClassTokens, Prompt


def text_features(model: CLIP, classes: ClassTokens, prompt: Prompt) -> Tensor:
    """Unit features [B, C, D] of every (prompt, class) pair, each padded to the model's full length."""
    rows = [
        torch.stack([_one(model, classes, prompt, image, row) for row in range(len(classes))])
        for image in range(len(prompt))
    ]
    return torch.stack(rows)


def _one(model: CLIP, classes: ClassTokens, prompt: Prompt, image: int, row: int) -> Tensor:
    length = int(classes.lengths[row])
    ids = torch.zeros(model.context_length, dtype=torch.long)
    ids[:length] = classes.ids[row, :length]
    context = prompt.context[image] if prompt.context.dim() == 3 else prompt.context[image, row]
    slots = classes.slots[row].tolist()
    vectors = [model.token_embedding.weight[token] for token in ids]
    for vector, slot in zip(context, slots, strict=True):
        vectors[slot] = vector
    x = (torch.stack(vectors) + model.positional_embedding)[None]
    for depth, block in enumerate(model.transformer.resblocks):
        if prompt.text_layers is not None and 1 <= depth <= prompt.text_layers.shape[1]:
            states = list(x[0])
            for vector, slot in zip(prompt.text_layers[image, depth - 1], slots, strict=True):
                states[slot] = vector
            x = torch.stack(states)[None]
        x = block(x, attn_mask=model.attn_mask)
    feature = model.ln_final(x)[0, int(ids.argmax())] @ model.text_projection
    return feature / feature.norm()
