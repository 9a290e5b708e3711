"""What every part of the benchmark uses: the models under test, a clock, and the list of what was measured."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from open_clip.model import CLIP
from plain import PlainLoop
from torch import Tensor

from poise import methods
from poise.backbones.encoder import Encoder
from poise.images import LoadedImage
from poise.prompts import init_prompt
from poise.tuning import Tuner
from poise.types import ClassTokens
from poise.views import ViewPlan, plan_views


@dataclass
class Bench:
    """The models under test and what was measured."""

    options: argparse.Namespace
    device: torch.device
    plain: CLIP
    encoder: Encoder
    rows: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)  # what a part that runs twice measures once

    def note(self, part: str, **values: Any) -> None:
        self.rows.append({"part": part, **values})
        shown = "  ".join(f"{key}={_short(value)}" for key, value in values.items())
        print(f"{part:8s} {shown}", flush=True)

    def tuner(self, classes: ClassTokens, names: Sequence[str] = ("tpt",)) -> Tuner:
        return Tuner(self.encoder, classes, [methods.get(name) for name in names])

    def plain_loop(self, classes: ClassTokens) -> PlainLoop:
        start = init_prompt(self.encoder, classes).context[0].float()
        return PlainLoop(self.plain, classes, start)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, work: Callable[[], Any], *, repeats: int = 3, warm: int = 1) -> float:
        """Median of some runs."""
        for _ in range(warm):
            work()
        taken = []
        for _ in range(repeats):
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            taken.append(1000 * (time.perf_counter() - began))
        return statistics.median(taken)

    def device_milliseconds(self, work: Callable[[], Any]) -> float:
        """The time that the device's kernels and copies take, whatever the host does between them."""
        if self.device.type != "cuda":
            return float("nan")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            self.sync()
        return sum(event.self_device_time_total for event in profile.key_averages()) / 1000

    def peak(self, work: Callable[[], Any]) -> float:
        """GiB at the highest point, all that is kept from before included."""
        if self.device.type != "cuda":
            work()
            return float("nan")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.sync()
        return torch.cuda.max_memory_allocated() / 2**30


def pictures_of(views: Tensor) -> list[Tensor]:
    """[V, 3, S, S] as the plain loop's loader gives it."""
    return list(views.float().split(1))


def plan_of(picture: LoadedImage, views: int) -> ViewPlan:
    """The plan that the benchmarks use for a picture."""
    return plan_views(picture.image.size, views=views, key=picture.key, augmix=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
