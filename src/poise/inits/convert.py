"""Published CoOp and MaPLe checkpoints as poise prompts. They are pickles, so only their tensors are read.

The published trainer also stores its learning-rate schedule: a CosineAnnealingLR with its SGD, whose state is a
defaultdict. These names, and no others, are accepted; stand-ins without behaviour take their place, so that nothing of
the schedule is built.
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
    """Takes the place of an object whose content is of no use here."""

    def __setstate__(self, state: object) -> None:
        pass


def _plain_dict(factory: object) -> dict[object, object]:
    return {}


_SCHEDULE: list[Any] = [
    (_NotRead, "torch.optim.lr_scheduler.CosineAnnealingLR"),
    (_NotRead, "torch.optim.sgd.SGD"),
    (_plain_dict, "collections.defaultdict"),  # weights_only refuses to fill a real one
    (_NotRead, "builtins.dict"),  # the defaultdict's factory
]
_MAPLE_WEIGHT, _MAPLE_BIAS = "compound_prompt_projections.{}.weight", "compound_prompt_projections.{}.bias"


def read_coop(path: str | Path, model: str, *, position: str = "end", labels_hash: str = "") -> StoredPrompt:
    """A CoOp checkpoint (``state_dict`` with ``ctx`` [M, E], or [C, M, E] where contexts are class-specific)."""
    state = _state(path)
    if "ctx" not in state or state["ctx"].ndim not in (2, 3):
        raise _foreign(path, state, "'ctx' of shape [M, E] or [C, M, E]", "CoOp")
    context = state["ctx"].float()
    if context.ndim == 3 and not labels_hash:
        raise InvalidCheckpointError(
            f"'{path}' has class-specific contexts of shape {list(context.shape)}.",
            hint="Say which labels they are for, in their order: --labels-file FILE.",
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
    """A MaPLe checkpoint: context, deep text prompts, and one projection to the image tower for each."""
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
    except (KeyError, RuntimeError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' has {depth} deep prompts that don't belong together: {problem}.", hint="Get the file again."
        ) from None
    facts = Facts(kind="maple", model=model, template="a photo of a {}.", context="before", tokens=len(state["ctx"]))
    return StoredPrompt({name: tensor.float() for name, tensor in tensors.items()}, facts)


def _state(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint's ``state_dict``, by their names inside the prompt learner."""
    try:
        with torch.serialization.safe_globals(_SCHEDULE):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InvalidCheckpointError(
            f"There is no checkpoint '{path}'.", hint="Give the published .pth.tar file."
        ) from None
    except Exception as problem:  # a damaged pickle ends in errors of any kind
        # torch's own message advises to load with code execution allowed, so it isn't passed on.
        raise InvalidCheckpointError(
            f"'{path}' can't be read as plain weights ({type(problem).__name__}).",
            hint="It is damaged, or it holds more than tensors and the schedule of SGD, which poise never runs.",
        ) from problem
    state = content.get("state_dict", content) if isinstance(content, dict) else {}
    return {
        str(name).removeprefix("module.").removeprefix("prompt_learner."): tensor
        for name, tensor in (state.items() if isinstance(state, dict) else ())
        if isinstance(tensor, Tensor)
    }


def _foreign(path: str | Path, state: dict[str, Tensor], wanted: str, kind: str) -> InvalidCheckpointError:
    found = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in list(state.items())[:6]) or "no tensors"
    return InvalidCheckpointError(f"'{path}' holds {found}.", hint=f"A {kind} checkpoint has {wanted}.")
