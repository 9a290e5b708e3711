"""Trains an open_clip ViT to compute `pocket`'s image features, from unlabelled images, in minutes.

Both towers see the same random crop, each at its own size. The text tower stays that of `pocket`. The result is no
good model: it is a trained ViT where no other is available.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from random_crops import Cut, Squares
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from poise.backbones.loaders.openclip_load import CONFIG_NAME, build
from poise.backbones.loaders.pocket import load_pocket
from poise.encoding.class_texts import ClassTexts
from poise.prompts import init_prompt, tokenise
from poise.types import DualEncoder

WEIGHTS = "open_clip_model.safetensors"
ABOUT = "training.json"
SIDE = 256  # of the squares in the device's memory
ARCHITECTURES = {
    "ViT-B-16": {"image_size": 224, "patch_size": 16, "width": 768, "layers": 12},
    "ViT-S-16": {"image_size": 224, "patch_size": 16, "width": 384, "layers": 12},
    "tiny": {"image_size": 32, "patch_size": 16, "width": 64, "layers": 2},
}


@dataclass(frozen=True)
class Recipe:
    """How the ViT is trained, for ``seconds`` or ``steps``, whichever comes first."""

    architecture: str = "ViT-B-16"
    seconds: float = 420.0
    steps: int = 1_000_000
    batch: int = 256
    rate: float = 6e-4  # the largest learning rate
    warmup: float = 0.08  # share of the training in which it rises; then it falls as a cosine
    decay: float = 0.05
    masked: float = 0.6  # share of the training in which half of the patches are left out, which is faster
    logits: float = 0.2  # weight of the divergence of the answers, beside the cosine of the features
    every: float = 30.0  # seconds between validations
    seed: int = 0


class HalfOfPatches(nn.Module):
    """Leaves out a random half of the patches in training, the class token never."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        patches = x.shape[1] - 1
        kept = 1 + torch.rand(len(x), patches, device=x.device).topk(max(1, patches // 2)).indices
        rows = torch.cat([torch.zeros_like(kept[:, :1]), kept], 1)
        return x.gather(1, rows[..., None].expand(-1, -1, x.shape[-1]))


@dataclass(frozen=True)
class Goal:
    """The teacher, and the texts [C, D] over which its answers and those of the ViT are compared."""

    teacher: DualEncoder
    texts: Tensor

    def features(self, cut: Cut) -> Tensor:
        spec = self.teacher.image
        images = cut.resized(spec.size, spec.mean, spec.std)
        return self.teacher.encode_images(images[:, None])[:, 0]

    def loss(self, features: Tensor, wanted: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean cosine of unit features [B, D]."""
        cosine = (features * wanted).sum(-1).mean()
        answers, target = ((self.teacher.scale * x @ self.texts.T).log_softmax(-1) for x in (features, wanted))
        divergence = F.kl_div(answers, target, log_target=True, reduction="batchmean")
        return 1 - cosine + weight * divergence, cosine


class Student:
    """The ViT in training, with the text tower of ``pocket``'s folder."""

    def __init__(self, pocket: Path, recipe: Recipe, device: torch.device) -> None:
        self.config = json.loads((pocket / CONFIG_NAME).read_text(encoding="utf-8"))
        self.config["model_cfg"]["vision_cfg"] = ARCHITECTURES[recipe.architecture]
        self.size = int(ARCHITECTURES[recipe.architecture]["image_size"])
        preprocess = self.config["preprocess_cfg"]
        self._mean, self._std, self._device = preprocess["mean"], preprocess["std"], device
        torch.manual_seed(recipe.seed)
        self.model: Any = build(self.config["model_cfg"], None)
        stored = load_file(pocket / WEIGHTS)
        texts = {name: tensor.float() for name, tensor in stored.items() if not name.startswith("visual.")}
        missing, unexpected = self.model.load_state_dict(texts, strict=False)
        assert not unexpected
        assert all(name.startswith("visual.") for name in missing)
        self.model.requires_grad_(False)
        self.tower = self.model.visual.requires_grad_(True).to(device)
        _init(self.tower)
        self.tower.patch_dropout = HalfOfPatches()

    def features(self, cut: Cut) -> Tensor:
        """Return unit features [B, D] in float32."""
        images = cut.resized(self.size, self._mean, self._std)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            features = self.tower(images)
        return F.normalize(features.float(), dim=-1)

    def groups(self, decay: float) -> list[dict[str, Any]]:
        """Return the parameters for an optimizer; vectors are not decayed."""
        parameters = list(self.tower.parameters())
        return [
            {"params": [x for x in parameters if x.dim() > 1], "weight_decay": decay},
            {"params": [x for x in parameters if x.dim() < 2], "weight_decay": 0.0},
        ]

    def save(self, folder: Path, about: dict[str, Any]) -> None:
        """Write a folder in open_clip's format."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_NAME).write_text(json.dumps(self.config, indent=2), encoding="utf-8")
        (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
        save_file(
            {name: x.detach().cpu().contiguous() for name, x in self.model.state_dict().items()}, folder / WEIGHTS
        )


class HeldOut:
    """Images on which the ViT is compared with the teacher."""

    def __init__(self, goal: Goal, squares: Squares) -> None:
        rows = torch.arange(len(squares.pixels), device=squares.pixels.device).split(256)
        self._cuts = [Cut.central(squares, part) for part in rows]
        self._wanted = [goal.features(cut) for cut in self._cuts]
        self._texts = goal.texts

    @torch.no_grad()
    def compare(self, student: Student) -> dict[str, float]:
        """Return the mean cosine of both features, and how often both have the same answer."""
        student.tower.eval()
        features, wanted = torch.cat([student.features(cut) for cut in self._cuts]), torch.cat(self._wanted)
        student.tower.train()
        same = (features @ self._texts.T).argmax(-1) == (wanted @ self._texts.T).argmax(-1)
        return {
            "held_out_cosine": round(float((features * wanted).sum(-1).mean()), 4),
            "same_answer": round(float(same.float().mean()), 4),
        }


def distil(
    pocket: Path,
    train: Sequence[bytes],
    held_out: Sequence[bytes],
    texts: Sequence[str],
    out: Path,
    recipe: Recipe,
    device: torch.device,
) -> dict[str, Any]:
    """Train a ViT, save it, and return what to say about it.

    Args:
        pocket: Folder of the teacher.
        train: JPEG files to train on.
        held_out: JPEG files on which the ViT is compared with the teacher.
        texts: Class names over which answers are compared.
        out: Folder for the ViT.
        recipe: How it is trained.
        device: Where it is trained.
    """
    torch.backends.cudnn.benchmark = True  # all batches have one size, and the teacher consists of convolutions
    half = torch.float16 if device.type == "cuda" else torch.float32
    teacher = load_pocket(device=device, dtype=half, folder=pocket)
    goal = Goal(teacher, _text_features(teacher, texts))
    squares, tested = Squares.read(train, SIDE, device), HeldOut(goal, Squares.read(held_out, SIDE, device))
    student = Student(pocket, recipe, device)
    _say(f"{len(train)} training images, {len(held_out)} held out, {len(texts)} texts, {recipe}")
    began = time.perf_counter()
    steps = _train(student, goal, squares, tested, recipe)
    about = {
        **asdict(recipe),
        "steps": steps,
        "trained_seconds": round(time.perf_counter() - began, 1),
        "train_images": len(train),
        "held_out_images": len(held_out),
        **tested.compare(student),
    }
    student.save(out, about)
    return about


def _train(student: Student, goal: Goal, squares: Squares, tested: HeldOut, recipe: Recipe) -> int:
    device = squares.pixels.device
    optimizer = torch.optim.AdamW(student.groups(recipe.decay), betas=(0.9, 0.98), fused=device.type == "cuda")
    began = last = time.perf_counter()
    step, before = 0, 0
    for rows in _batches(len(squares.pixels), recipe, device):
        now = time.perf_counter()
        done = max((now - began) / recipe.seconds, step / recipe.steps)
        if done >= 1:
            break
        if done >= recipe.masked:
            student.tower.patch_dropout = nn.Identity()
        rate = recipe.rate * min(1.0, (done + 1e-3) / recipe.warmup) * (1 + math.cos(math.pi * done)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate
        cut = Cut.random(squares, rows)
        loss, cosine = goal.loss(student.features(cut), goal.features(cut), recipe.logits)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(student.tower.parameters(), 1.0)
        optimizer.step()
        step += 1
        if now - last >= recipe.every or step == 10:
            numbers = f"loss {loss.item():.4f}, cosine {cosine.item():.4f}, gradient {norm.item():.2f}"
            speed = (step - before) / (time.perf_counter() - last)
            _say(f"{now - began:.0f} s, step {step}, {speed:.2f} steps/s, {numbers}, {tested.compare(student)}")
            last, before = time.perf_counter(), step
    student.tower.patch_dropout = nn.Identity()
    return step


def _batches(images: int, recipe: Recipe, device: torch.device) -> Iterator[Tensor]:
    """Yield rows of images: each image once, then in another order, without end."""
    generator = torch.Generator().manual_seed(recipe.seed)
    left = torch.empty(0, dtype=torch.long)
    while True:
        while len(left) < recipe.batch:
            left = torch.cat([left, torch.randperm(images, generator=generator)])
        yield left[: recipe.batch].to(device)
        left = left[recipe.batch :]


@torch.no_grad()
def _text_features(encoder: DualEncoder, texts: Sequence[str]) -> Tensor:
    """Return unit features [C, D] of class names in the default template."""
    classes = tokenise(encoder, texts, context="none", repeats=True)
    prompt = init_prompt(encoder, classes)
    return ClassTexts(encoder, classes, prompt).features(prompt)[0]


def _init(tower: nn.Module) -> None:
    """Draw small weights, smaller ones where a block adds to the residual stream."""
    depth = sum(name.endswith("out_proj.weight") for name, _ in tower.named_parameters())
    for name, parameter in tower.named_parameters():
        if name.endswith((".in_proj_weight", "c_fc.weight", "out_proj.weight", "c_proj.weight")):
            added = name.endswith(("out_proj.weight", "c_proj.weight"))
            nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * depth) if added else 1))
        elif name.endswith("bias") and "ln_" not in name:
            nn.init.zeros_(parameter)


def _say(text: str) -> None:
    print(text, flush=True)
