"""Put trunk, projection and text tower together in open_clip's `local-dir` format, with an honest scale.

The scale has the least mean negative log-likelihood over kinds of label set, each weighing the same. Three are of
Caltech101's train images (their labels serve here, and to choose in `held_back.py`): its own 100 names, many random ten
of them, and its 100 names among 900 other nouns. After the second stage there are two more, on photos without labels,
with the image tower's own answers, summed, as the truth: cuts of WordNet's tree, and everyday nouns.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import corpus as corpora
import distil
import nouns
import space as spaces
import torch
import units
from convert import load_trunk
from label_sets import Drawer
from looks import SIZE, preprocess
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from units import CONFIG, WEIGHTS

REPOSITORY = Path(__file__).resolve().parents[2]
SCALES = torch.arange(5, 100, 0.5)
COARSE = ("cut", "common")  # kinds of label sets of the second stage
DRAWN = 200  # label sets of each
Set = tuple[Tensor, Tensor, Tensor]  # cosines [N, n], the truth [N, n] and weights of images [N]
FOLDER = REPOSITORY / "src" / "poise" / "backbones" / "weights" / "pocket"


def config(joint: int, width: int, layers: int) -> dict[str, object]:
    """open_clip's description of the model."""
    return {
        "model_cfg": {
            "embed_dim": joint,
            "vision_cfg": {
                "timm_model_name": "tf_efficientnet_lite2",
                "timm_model_pretrained": False,
                "timm_pool": "avg",
                "timm_proj": "linear",
                "timm_proj_bias": True,
                "image_size": SIZE,
            },
            "text_cfg": {
                "context_length": 77,
                "vocab_size": 49408,
                "width": width,
                "heads": width // 64,
                "layers": layers,
            },
        },
        "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "shortest"},
    }


def assemble(text: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The state dict: matrices in half precision; statistics, biases and the scale in full."""
    trunk = load_trunk("lite2")
    space = spaces.build(trunk.classifier.weight.detach(), trunk.classifier.bias.detach())
    state = {f"visual.trunk.{k}": v for k, v in trunk.state_dict().items() if not k.startswith("classifier")}
    state |= {"visual.head.proj.weight": space.weight, "visual.head.proj.bias": space.bias}
    state |= dict(text)
    state["logit_scale"] = torch.tensor(math.log(scale))
    return {
        k: (v.half() if v.ndim > 1 else v.float() if v.is_floating_point() else v).contiguous()
        for k, v in state.items()
    }


def write(folder: Path, text: dict[str, Tensor], scale: float) -> None:
    """Write weights, configuration and their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = 1 + max(int(k.split(".")[2]) for k in text if k.startswith("transformer.resblocks."))
    save_file(assemble(text, scale), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / WEIGHTS).chmod(0o644)
    description = config(text["text_projection"].shape[1], text["text_projection"].shape[0], layers)
    (folder / CONFIG).write_text(json.dumps(description, indent=2) + "\n")
    units.write_hashes(folder)


@torch.inference_mode()
def labelled_features(data: Path, model: torch.nn.Module, cache: Path) -> tuple[Tensor, Tensor, list[str]]:
    """Unit features of Caltech101's train images, their labels and the class names."""
    split = json.loads((data / "caltech-101" / "split_zhou_Caltech101.json").read_text())["train"]
    names = dict(sorted({(label, name.replace("_", " ")) for _, label, name in split}))
    if not cache.exists():
        prepare, found = preprocess(), []
        for first in range(0, len(split), 32):
            files = [data / "caltech-101" / "101_ObjectCategories" / f for f, _, _ in split[first : first + 32]]
            found.append(model.encode_image(torch.stack([prepare(Image.open(f).convert("RGB")) for f in files])))
            print(f"images {first}/{len(split)}", flush=True)
        save_file({"features": torch.cat(found)}, cache)
    features = load_file(cache)["features"]
    return F.normalize(features, dim=-1), torch.tensor([label for _, label, _ in split]), list(names.values())


@torch.inference_mode()
def fit_scale(model: torch.nn.Module, tokenizer: object, data: Path, cache: Path) -> tuple[float, dict[str, float]]:
    """The scale with the least mean negative log-likelihood; also each kind's own best scale."""

    def encode(labels: list[str]) -> Tensor:
        tokens = tokenizer([f"a photo of a {label}." for label in labels])  # type: ignore[operator]
        return torch.cat([F.normalize(model.encode_text(part), dim=-1) for part in tokens.split(128)])

    corpus = corpora.load(cache, cache / "wordnet", data / "imagenet" / "classnames.txt")
    found = [*names_of_caltech(encode, labelled_features(data, model, cache / "scale_features.safetensors"), corpus)]
    if (photos := cache / "photos.safetensors").exists():  # of the second stage
        words, parts = nouns.load(cache, corpus), load_file(photos)
        found += [(kind, coarse_sets(kind, encode, words, parts)) for kind in COARSE]
    losses = {}
    for kind, sets in found:
        total, count = torch.zeros(len(SCALES)), 0.0
        for cosine, truth, weight in sets:
            nll = torch.stack([-(truth * (s * cosine).log_softmax(-1)).sum(-1) @ weight for s in SCALES])
            total, count = total + nll, count + float(weight.sum())
        losses[kind] = total / count
    best = {kind: float(SCALES[loss.argmin()]) for kind, loss in losses.items()}
    return float(SCALES[torch.stack(list(losses.values())).mean(0).argmin()]), best


def names_of_caltech(
    encode: Callable[[list[str]], Tensor], images: tuple[Tensor, Tensor, list[str]], corpus: dict[str, Any]
) -> Iterator[tuple[str, list[Set]]]:
    """Its names, ten of them, and its names among other nouns."""
    features, labels, names = images
    generator = torch.Generator().manual_seed(0)
    words = [corpus["synsets"]["words"][s][0] for s in corpus["photographed"]]
    drawn = [words[i] for i in torch.randperm(len(words), generator=generator)[:900].tolist()]
    cosine = features @ encode(names + [word for word in drawn if word not in names]).T
    tens = [torch.randperm(len(names), generator=generator)[:10] for _ in range(200)]
    every, many = torch.arange(len(names)), torch.arange(cosine.shape[1])
    for kind, sets in {"10 names": tens, "100 names": [every], "1000 names": [many]}.items():
        inside = [torch.isin(labels, chosen) for chosen in sets]
        yield (
            kind,
            [
                (cosine[at][:, chosen], (labels[at][:, None] == chosen).float(), torch.ones(int(at.sum())))
                for at, chosen in zip(inside, sets, strict=True)
            ],
        )


def coarse_sets(
    kind: str, encode: Callable[[list[str]], Tensor], words: dict[str, Any], parts: dict[str, Tensor]
) -> list[Set]:
    """Label sets of one kind; photos count as far as some label covers what the image tower sees."""
    photos = {key: value[parts["view"] == 0] for key, value in distil.unpacked(parts).items()}
    drawer = Drawer(words, [], lambda row: not row["pair"])
    sets = [drawer(2 * 10**6 + number, kind, distractors=False).rows for number in range(DRAWN)]
    used = sorted({row for rows in sets for row in rows})
    cosine = photos["features"] @ encode([words["rows"][row]["text"] for row in used]).T
    at = {row: column for column, row in enumerate(used)}
    found = []
    for rows in sets:
        sums = photos["classes"] @ distil.share_of(distil.members_of([words["rows"][row] for row in rows]))
        covered = sums.sum(-1, keepdim=True)
        weight = distil.known_of(covered)[:, 0]
        found.append((cosine[:, [at[row] for row in rows]], sums / covered.clamp(min=1e-9), weight))
    return found


def finish(text: dict[str, Tensor], cache: Path, data: Path, out: Path) -> None:
    """Bring the tower to CLIP's units, fit the scale with open_clip itself reading the model, then write it."""
    import open_clip

    text = units.rescale({k: v.float() for k, v in text.items()})
    write(cache / "unscaled", text, 20.0)
    name = f"local-dir:{cache / 'unscaled'}"
    scale, best = fit_scale(open_clip.create_model(name).eval(), open_clip.get_tokenizer(name), data, cache)
    print(f"scale {scale} (best for each kind of label set: {best})")
    write(out, text, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "scratch" / "pocket")
    parser.add_argument("--text", type=Path, help="text.safetensors of a training run; default: that of CACHE/run")
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()
    finish(load_file(args.text or args.cache / "run" / "text.safetensors"), args.cache, args.data, args.out)


if __name__ == "__main__":
    main()
