"""A plain implementation of test-time prompt tuning as published: the baseline of the benchmarks.

One image at a time; every class at the model's full text length; float32 weights under autocast with a gradient scaler;
the image tower runs again in each pass; PIL cuts the views one by one in worker processes.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import torch
from open_clip.model import CLIP
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from poise.types import ClassTokens, ImageSpec
from poise.views.magnitudes import OPERATIONS
from poise.views.pil.augmix import apply_operation


class PromptedClip(nn.Module):
    """A CLIP model with the context tokens as a parameter."""

    def __init__(self, model: CLIP, classes: ClassTokens, start: Tensor) -> None:
        super().__init__()
        self.model = model
        device = start.device
        length = model.context_length
        ids = torch.zeros(len(classes), length, dtype=torch.long)
        ids[:, : classes.ids.shape[1]] = classes.ids
        first = int(classes.slots[0, 0])
        self.ends = (classes.lengths - 1).to(device)
        with torch.no_grad():
            vectors = model.token_embedding(ids.to(device))
        self.register_buffer("before", vectors[:, :first])
        self.register_buffer("after", vectors[:, first + start.shape[0] :])
        self.register_buffer("start", start.clone())
        self.context = nn.Parameter(start.clone())

    def reset(self) -> None:
        with torch.no_grad():
            self.context.copy_(self.start)

    def text_features(self) -> Tensor:
        context = self.context[None].expand(len(self.before), -1, -1)
        x = torch.cat([self.before, context, self.after], dim=1) + self.model.positional_embedding
        x = self.model.transformer(x, attn_mask=self.model.attn_mask)
        x = self.model.ln_final(x)
        x = x[torch.arange(len(x), device=x.device), self.ends] @ self.model.text_projection
        return x / x.norm(dim=-1, keepdim=True)

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            image = self.model.visual(images)
        image = image / image.norm(dim=-1, keepdim=True)
        return self.model.logit_scale.exp() * image @ self.text_features().t()


class PlainLoop:
    """TPT: entropy of the mean prediction of the most confident tenth of the views, one AdamW step."""

    def __init__(self, model: CLIP, classes: ClassTokens, start: Tensor, *, lr: float = 5e-3) -> None:
        self.prompted = PromptedClip(model, classes, start)
        self.device = start.device
        self.half = start.device.type == "cuda"
        self.optimiser = torch.optim.AdamW([self.prompted.context], lr=lr)
        self.fresh = self.optimiser.state_dict()
        self.scaler = torch.amp.GradScaler("cuda", init_scale=1000, enabled=self.half)

    def __call__(self, views: Sequence[Tensor]) -> Tensor:
        """Return the probabilities [C] of one image from its V views [1, 3, S, S], the first one plain."""
        batch = torch.cat([view.to(self.device, non_blocking=True) for view in views])
        self.prompted.reset()
        self.optimiser.load_state_dict(self.fresh)
        with self._autocast():
            loss = _entropy_of_mean(_confident(self.prompted(batch)))
        self.optimiser.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimiser)
        self.scaler.update()
        with torch.no_grad(), self._autocast():
            return self.prompted(batch[:1])[0].float().softmax(-1)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.float16 if self.half else torch.bfloat16, enabled=self.half)


def _confident(logits: Tensor, fraction: float = 0.1) -> Tensor:
    entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    return logits[torch.argsort(entropy)[: max(1, int(len(entropy) * fraction))]]


def _entropy_of_mean(logits: Tensor) -> Tensor:
    log_probs = logits - logits.logsumexp(-1, keepdim=True)
    mean = log_probs.logsumexp(0) - torch.log(torch.tensor(float(len(logits)), device=logits.device))
    mean = torch.clamp(mean, min=torch.finfo(mean.dtype).min)
    return -(mean * mean.exp()).sum(-1)


class PlainViews(Dataset[list[Tensor]]):
    """Lists of V normalised views [3, S, S] from JPEG bytes, cut one by one with PIL."""

    def __init__(self, files: Sequence[bytes], spec: ImageSpec, *, views: int) -> None:
        self.files, self.views = files, views
        size = spec.size
        self.plain = transforms.Compose(
            [
                transforms.Resize(size, interpolation=transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(size),
            ]
        )
        self.crop = transforms.Compose([transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()])
        self.finish = transforms.Compose([transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        return [self.finish(self.plain(image)), *(self._augmix(image) for _ in range(self.views - 1))]

    def _augmix(self, image: Image.Image) -> Tensor:
        crop = self.crop(image)
        untouched = self.finish(crop)
        weights = np.float32(np.random.dirichlet([1.0, 1.0, 1.0]))
        keep = np.float32(np.random.beta(1.0, 1.0))
        mixed = torch.zeros_like(untouched)
        for chain in range(3):
            changed = crop.copy()
            for _ in range(np.random.randint(1, 4)):
                name = OPERATIONS[np.random.randint(len(OPERATIONS))]
                sign = 1.0 if np.random.uniform() > 0.5 else -1.0
                changed = apply_operation(changed, name, np.random.uniform(0.1, 1.0), sign)
            mixed += weights[chain] * self.finish(changed)
        return keep * untouched + (1 - keep) * mixed


def plain_loader(dataset: PlainViews, *, workers: int, pin: bool) -> DataLoader[list[Tensor]]:
    """Return a loader of one image at a time: a list of V tensors [1, 3, S, S]."""
    return DataLoader(dataset, batch_size=1, num_workers=workers, pin_memory=pin)
