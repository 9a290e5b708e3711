"""The row of `tools/chaos.py` in which the workers of a Ray run are killed every few seconds."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from poise.errors import WorkersLostError
from poise.evaluate import ray_engine
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.run import run
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, WorkerSettings
from tests.evaluate.attempt import contents

EVERY = 4.0  # seconds between two kills
SLOWER = 1.0  # seconds that each unit takes longer, so that there is something to kill


def run_with_kills(root: Path, count: Any) -> None:
    """Run locally and on Ray while its workers are killed, and compare the bytes."""
    pids = root / "pids"
    pids.mkdir()

    class Marked(ray_engine.UnitWorker):
        """Writes down its process, so that only it is killed."""

        def __init__(self, job: WorkerSettings, threads: int) -> None:
            super().__init__(job, threads)
            (pids / str(os.getpid())).touch()  # a worker that never started would not be tried again

        def work(self, unit: Unit) -> Finished:
            time.sleep(SLOWER)
            return super().work(unit)

    config = RunConfig(
        name="run",
        model="tiny",
        datasets=(f"folder:{root / 'images'}",),
        chunk=1,
        seeds=(1, 2, 3),
        methods=("zero-shot", "kld+cats"),
        views=4,
        batch_size=1,
        device="cpu",
    )
    torch.set_num_threads(1)  # as in the workers, which have a core each: other numbers of threads round differently
    run(config, Settings(out=str(root / "local"), workers=1))
    ray_engine.UnitWorker = Marked  # type: ignore[misc]
    stop = threading.Event()
    killer = threading.Thread(target=_kill_workers, args=(pids, stop, count))
    killer.start()
    try:
        while True:
            try:
                run(config, Settings(out=str(root / "ray"), engine="ray", actors=2, workers=1))
                break
            except WorkersLostError:  # one unit lost too many workers; the same command goes on
                continue
    finally:
        stop.set()
        killer.join()
    count.finished += 1
    ray, local = contents(root / "ray"), contents(root / "local")
    differ = [name for name in {**ray, **local} if ray.get(name) != local.get(name)]
    print("files that differ:", differ or "none")
    count.wrong += bool(differ)


def _kill_workers(pids: Path, stop: threading.Event, count: Any) -> None:
    numbers = random.Random(0)
    while not stop.wait(EVERY):
        alive = [file for file in sorted(pids.iterdir()) if Path(f"/proc/{file.name}").exists()]
        if alive:
            chosen = numbers.choice(alive)
            chosen.unlink()
            os.kill(int(chosen.name), signal.SIGKILL)
            count.kills += 1
