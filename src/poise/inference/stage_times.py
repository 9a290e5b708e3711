"""How long the stages of a run take, measured only if someone listens to the logger."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

log = logging.getLogger(__name__)


class StageTimes:
    """Adds up the seconds of named stages. On CUDA, a stage ends when its work on the GPU is done."""

    def __init__(self, device: torch.device) -> None:
        self.on = log.isEnabledFor(logging.INFO)
        self._device, self._seconds, self._lock = device, defaultdict[str, float](float), threading.Lock()
        self._began = time.perf_counter()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time inside the block to a stage."""
        if not self.on:
            yield
            return
        began = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        with self._lock:
            self._seconds[name] += time.perf_counter() - began

    def report(self, images: int) -> None:
        """Log the total, the rate and the seconds of each stage."""
        total = time.perf_counter() - self._began
        stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self._seconds.items())
        rate = images / total if total else 0.0
        overlap = " (stages overlap)" if self._device.type == "cuda" else ""
        log.info("%d images in %.2f s, %.2f per second: %s%s", images, total, rate, stages, overlap)
