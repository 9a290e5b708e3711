"""The optimisation: start of the token table, loss, learning rate, checkpoint, and what is reported meanwhile."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import batches
import targets as teachers
import torch
from torch import Tensor
from torch.nn import functional as F
from tower import TextTower

SHARPNESS = 30.0  # scale of the logits whose distributions over the 1000 class rows must agree
CHECKPOINT = 500  # steps
WARM_UP = 300


def start_embedding(tower: TextTower, vocabulary: Tensor) -> None:
    """Token vectors start as the principal components of what the tokens mean, at CLIP's usual size."""
    centred = vocabulary - vocabulary.mean(0)
    _, _, basis = torch.linalg.svd(centred[::4].double().cpu(), full_matrices=False)
    reduced = centred @ basis[: tower.token_embedding.embedding_dim].T.to(centred)
    with torch.no_grad():
        tower.token_embedding.weight.copy_(0.02 * reduced / reduced.std() + 0.002 * torch.randn_like(reduced))


def loss_of(out: Tensor, target: Tensor, trust: Tensor, rows: Tensor) -> Tensor:
    """Direction, and agreement of the distribution over the 1000 class rows with the target's."""
    out = F.normalize(out.float(), dim=-1)
    direction = 1 - (out * target).sum(-1)
    wanted = (SHARPNESS * target @ rows.T).softmax(-1)
    found = (SHARPNESS * out @ rows.T).log_softmax(-1)
    relation = (wanted * (wanted.clamp(min=1e-9).log() - found)).sum(-1)
    return (trust * (4 * direction + relation)).mean()


@torch.no_grad()
def measure(
    tower: TextTower, corpus: dict[str, Any], targets: teachers.Targets, rows: Tensor, held: Tensor | None
) -> str:
    """Share of class names nearest to their own row, and cosine of the words held out with their targets."""
    before, after = corpus["ids"]["standard"]

    def encode(names: list[list[int]]) -> Tensor:
        full = batches.padded(
            [[batches.START, *before, *n, *after, batches.START + 1] for n in names], str(rows.device)
        )
        return torch.cat([F.normalize(tower(part).float(), dim=-1) for part in full.clamp(min=0).split(4096)])

    names = encode(corpus["ids"]["names"])
    own = (names @ rows.T).argmax(-1) == torch.arange(len(rows), device=rows.device)
    text = f"names {own.float().mean():.4f} cosine {(names * rows).sum(-1).mean():.4f}"
    if held is not None:
        at = held.nonzero()[:, 0]
        words = encode([corpus["ids"]["words"][i] for i in at.tolist()])
        weight = targets.word_trust[at]
        text += f" held-out words {((words * targets.words[at]).sum(-1) * weight).sum() / weight.sum():.4f}"
    return text


def make_optimizer(tower: TextTower, rate: float, fused: bool) -> torch.optim.AdamW:
    """AdamW; tables, norms and biases don't decay."""
    matrices = [p for n, p in tower.named_parameters() if p.ndim == 2 and "embedding" not in n]
    others = [p for n, p in tower.named_parameters() if not (p.ndim == 2 and "embedding" not in n)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)


def train(
    args: argparse.Namespace, tower: TextTower, sampler: batches.Sampler, rows: Tensor, report: Callable[[], str]
) -> None:
    """Go on from the checkpoint, if there is one, to the last step."""
    optimizer = make_optimizer(tower, args.rate, args.device != "cpu")
    checkpoint = args.out / "checkpoint.pt"
    done, spent = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True, map_location=args.device)
        tower.load_state_dict(state["tower"])
        optimizer.load_state_dict(state["optimizer"])
        done, spent = state["step"], state["spent"]
    start = time.time() - spent
    while done < args.steps:
        progress = max(done / args.steps, (time.time() - start) / args.seconds if args.seconds else 0)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1, (done + 1) / WARM_UP) * (1 - progress)
        ids, target, trust = sampler(done, args.batch, args.seed)
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.device != "cpu"):
            out = tower(ids, parts=6)
        loss = loss_of(out, target, trust, rows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % CHECKPOINT == 0:
            spent = time.time() - start
            print(f"step {done}/{args.steps} {spent:.0f}s loss {loss.item():.4f} {report()}", flush=True)
            state = {"tower": tower.state_dict(), "optimizer": optimizer.state_dict(), "step": done, "spent": spent}
            torch.save(state, checkpoint)
    print(f"end: step {done} {time.time() - start:.0f}s {report()}", flush=True)
