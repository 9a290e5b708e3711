"""Converts published CoOp and MaPLe checkpoints. They are pickles, so only their tensors are read.

The published trainer also stores its learning-rate schedule: a CosineAnnealingLR with its SGD, whose state is a
defaultdict. Only these names are accepted, and they are replaced by empty classes, so that no schedule is created.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise.errors import InvalidCheckpointError
from poise.inits.coop import context_option, placeholder_template
from poise.prompts.files import Facts, StoredPrompt


class _NotRead:
    """Replaces an object that is not needed."""

    def __setstate__(self, state: object) -> None:
        pass


def _plain_dict(factory: object) -> dict[object, object]:
    return {}


_SCHEDULE: list[Any] = [
    (_NotRead, "torch.optim.lr_scheduler.CosineAnnealingLR"),
    (_NotRead, "torch.optim.sgd.SGD"),
    (_plain_dict, "collections.defaultdict"),  # weights_only does not fill a real one
    (_NotRead, "builtins.dict"),  # the defaultdict's factory
]
_MAPLE_WEIGHT, _MAPLE_BIAS = "compound_prompt_projections.{}.weight", "compound_prompt_projections.{}.bias"


def read_coop(path: str | Path, model: str, *, position: str = "end", labels_hash: str = "") -> StoredPrompt:
    """Read a CoOp checkpoint: a ``state_dict`` with ``ctx`` [M, E], or [C, M, E] for class-specific contexts.

    These need the hash of their labels; ``position`` is that of the class name: end, middle or front.
    """
    state = _state(path)
    if "ctx" not in state or state["ctx"].ndim not in (2, 3):
        raise _foreign(path, state, "'ctx' of shape [M, E] or [C, M, E]", "CoOp")
    context = state["ctx"].float()
    if context.ndim == 3 and not labels_hash:
        raise InvalidCheckpointError(
            f"'{path}' has class-specific contexts of shape {list(context.shape)}.",
            hint="Give their labels in order: --labels-file FILE.",
        )
    facts = Facts(
        kind="coop",
        model=model,
        template=placeholder_template(context.shape[-2], position),
        context=context_option(position, context.shape[-2]),
        labels_hash=labels_hash if context.ndim == 3 else "",
    )
    return StoredPrompt({"context": context}, facts)


def read_maple(path: str | Path, model: str) -> StoredPrompt:
    """Read a MaPLe checkpoint: context, deep text prompts, and a projection to the image tower for each."""
    state = _state(path)
    needed = ("ctx", "proj.weight", "proj.bias")
    if any(name not in state for name in needed):
        raise _foreign(path, state, ", ".join(f"'{name}'" for name in needed), "MaPLe")
    depth = sum(name.startswith("compound_prompts_text.") for name in state)
    try:
        deep = [state[f"compound_prompts_text.{layer}"] for layer in range(depth)]
        weights = [state["proj.weight"], *(state[_MAPLE_WEIGHT.format(layer)] for layer in range(depth))]
        biases = [state["proj.bias"], *(state[_MAPLE_BIAS.format(layer)] for layer in range(depth))]
        tensors = {"context": state["ctx"], "weight": torch.stack(weights), "bias": torch.stack(biases)}
        tensors["deep"] = torch.stack(deep) if deep else state["ctx"].new_zeros(0, *state["ctx"].shape)
    except (KeyError, RuntimeError) as error:
        raise InvalidCheckpointError(
            f"'{path}' has {depth} deep prompts that don't fit together: {error}.", hint="Download the file again."
        ) from None
    facts = Facts(kind="maple", model=model, template="a photo of a {}.", context="before", tokens=len(state["ctx"]))
    return StoredPrompt({name: tensor.float() for name, tensor in tensors.items()}, facts)


def _state(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint's ``state_dict`` by their names in the prompt learner."""
    try:
        with torch.serialization.safe_globals(_SCHEDULE):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InvalidCheckpointError(f"There is no checkpoint '{path}'.", hint="Give the .pth.tar file.") from None
    except Exception as error:  # damaged pickles raise errors of any kind
        # torch's message recommends to allow code execution, so it is not repeated.
        raise InvalidCheckpointError(
            f"'{path}' can't be read as plain weights ({type(error).__name__}).",
            hint="It is damaged, or contains more than tensors and the schedule of SGD, which poise never runs.",
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    return {
        str(name).removeprefix("module.").removeprefix("prompt_learner."): tensor
        for name, tensor in (state.items() if isinstance(state, dict) else ())
        if isinstance(tensor, Tensor)
    }


def _foreign(path: str | Path, state: dict[str, Tensor], needed: str, kind: str) -> InvalidCheckpointError:
    content = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in list(state.items())[:6]) or "no tensors"
    return InvalidCheckpointError(f"'{path}' contains {content}.", hint=f"A {kind} checkpoint has {needed}.")
