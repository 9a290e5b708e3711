"""One attempt at `poise bench run` in a separate process that can be made to die at a given write."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

PRELOAD = [
    "poise.cli.commands.bench",
    "poise.evaluate.run",
    "poise.backbones.loaders.tiny",
    "tests.evaluate.attempt",
    "pandas",
]
METHODS = "zero-shot,kld+cats"


def make_images(root: Path, classes: int = 3, each: int = 4) -> Path:
    """A small folder per class of noise images, the same ones every time."""
    numbers = np.random.default_rng(0)
    for label in range(classes):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        for index in range(each):
            Image.fromarray(numbers.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    return root


def arguments(image_folder: Path, out: Path, *more: str) -> list[str]:
    """A run of 24 images x seeds in 8 chunks under the name 'run'; options that are given again count."""
    options = {
        "--dataset": f"folder:{image_folder}",
        "--model": "tiny",
        "--method": METHODS,
        "--seeds": "1,2",
        "--views": "4",
        "--chunk": "3",
        "--batch-size": "2",
        "--workers": "2",
        "--device": "cpu",
        "--out": str(out),
        "--name": "run",
    }
    words = [word for option in options.items() for word in option]
    return ["bench", "run", *words, "--allow-changes", "--tsne", *more]


def start(
    argv: list[str], log: Path, *, die_at: int = 0, full_at: int = 0, pause: float = 0.0
) -> multiprocessing.process.BaseProcess:
    """Begin an attempt. Modules are imported once, in a server process that forks each attempt."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=attempt, args=(argv, str(log), die_at, full_at, pause))
    process.start()
    return process


def finish(argv: list[str], log: Path, *, die_at: int = 0, full_at: int = 0, timeout: float = 120) -> int:
    """An attempt from begin to end: its exit code, negative for a signal."""
    process = start(argv, log, die_at=die_at, full_at=full_at)
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(log.read_text())
    return process.exitcode


def attempt(argv: list[str], log: str, die_at: int, full_at: int, pause: float) -> None:
    """The child: the real command line, with output into a file and faults at the n-th disk call."""
    import torch

    from poise.cli import main

    gc.freeze()  # otherwise each fork looks through all that is imported, which copies it
    torch.set_num_threads(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    _install_faults(die_at, full_at, pause)
    sys.argv = ["poise", *argv]
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _install_faults(die_at: int, full_at: int, pause: float) -> None:
    calls = 0
    real_fsync, real_replace = os.fsync, os.replace

    def count() -> None:
        nonlocal calls
        calls += 1
        time.sleep(pause)
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if full_at and calls >= full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fsync(handle):
        count()
        real_fsync(handle)

    def replace(source, target, **places):
        count()
        real_replace(source, target, **places)

    os.fsync, os.replace = fsync, replace


def contents(out: Path) -> dict[str, bytes]:
    """Every file of records and features of the run, by its place."""
    run = out / "run"
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted(run.rglob("*"))
        if file.suffix in (".parquet", ".npz")
    }
