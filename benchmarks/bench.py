"""Shared parts of the benchmarks: the models under test, timers, and the list of measurements."""

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
    """The models under test and the measurements."""

    options: argparse.Namespace
    device: torch.device
    plain: CLIP
    encoder: Encoder
    rows: list[dict[str, Any]] = field(default_factory=list)
    cache: dict[str, Any] = field(default_factory=dict)  # measurements that are made only once

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
        """Return the median time of several runs."""
        for _ in range(warm):
            work()
        times = []
        for _ in range(repeats):
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    def device_milliseconds(self, work: Callable[[], Any]) -> float:
        """Return the total time of kernels and copies on the device, without idle time."""
        if self.device.type != "cuda":
            return float("nan")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work()
            self.sync()
        return sum(event.self_device_time_total for event in profile.key_averages()) / 1000

    def peak(self, work: Callable[[], Any]) -> float:
        """Return the peak memory in GiB, including memory that was allocated before."""
        if self.device.type != "cuda":
            work()
            return float("nan")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.sync()
        return torch.cuda.max_memory_allocated() / 2**30


def split_views(views: Tensor) -> list[Tensor]:
    """Return views [V, 3, S, S] as the list that the plain loop's loader gives."""
    return list(views.float().split(1))


def plan_of(loaded: LoadedImage, views: int) -> ViewPlan:
    """Return the view plan of an image."""
    return plan_views(loaded.image.size, views=views, key=loaded.key, augmix=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
