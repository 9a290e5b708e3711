"""The golden numbers of other papers' methods (tests/golden/peers.*), and the loop behind those with free texts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from poise.adamw import AdamW
from poise.methods import Method
from poise.rules import CosineHead
from poise.rules.tps import Shift

GOLDEN = Path(__file__).parent / "golden"
unit = torch.nn.functional.normalize


@dataclass(frozen=True)
class Case:
    """One run of published code, or of a plain loop where its id ends in "described"."""

    id: str
    settings: dict[str, Any]
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]

    @property
    def head(self) -> CosineHead:
        return CosineHead(self.settings["scale"])


def cases(method: str) -> list[Case]:
    """Return the cases of one method."""
    tensors, listed = load_file(GOLDEN / "peers.safetensors"), json.loads((GOLDEN / "peers.json").read_text())["cases"]
    found = []
    for entry in (entry for entry in listed if entry["method"] == method):
        inputs = {role: tensors[name] for role, name in entry["inputs"].items()}
        per_image = {role: value[: entry["rows"]] for role, value in inputs.items() if role != "text"}
        if "views" in entry:
            per_image["views"] = per_image["views"][:, : entry["views"]]
        outputs = {role: tensors[name] for role, name in entry["outputs"].items()}
        found.append(Case(entry["id"], entry["settings"], {**inputs, **per_image}, outputs))
    return found


def tune_texts(method: Method, case: Case) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Tune text features; return the losses [n] and gradients [n, C, D] of each step, and the last logits [n, C]."""
    views, head = case.inputs["views"], case.head
    texts, optimiser = Shift(case.inputs["text"].repeat(len(views), 1, 1)), AdamW(lr=method.lr)
    reference, objective = head.logits(views, unit(texts.values, dim=-1)), method.objective()
    losses, gradients = [], []
    for _ in range(method.steps):
        leaf = texts.values.clone().requires_grad_()
        loss = objective(replace(head.outputs(views, unit(leaf, dim=-1)), reference_logits=reference))
        gradients += torch.autograd.grad(loss.sum(), leaf)
        losses.append(loss.detach())
        texts, optimiser = optimiser.step(texts, Shift(gradients[-1]))
    return losses, gradients, head.logits(views, unit(texts.values, dim=-1))[:, 0]
