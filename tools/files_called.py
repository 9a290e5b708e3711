"""Counts the files of poise whose functions are called by `classify`, `bench run`, `calibrate` and one POST.

python tools/files_called.py
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from poise.serve.http.app import create_app
from poise.serve.settings import ServiceSettings

PACKAGE = str(Path(poise.__file__).parent)
FOUND: set[str] = set()


def note(frame: FrameType, event: str, value: Any) -> None:
    """Remember the file of a function of poise that is called."""
    code = frame.f_code
    if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(PACKAGE):
        FOUND.add(code.co_filename)


def files_called(work: Callable[[], Any]) -> int:
    """Return in how many files functions are called, in any thread, after a first time that imports what is needed."""
    work()
    FOUND.clear()
    sys.setprofile(note)
    work()
    sys.setprofile(None)
    return len(FOUND)


def run(*words: str) -> None:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output


def main() -> None:
    threading.setprofile(note)  # of threads that start from now on
    folder = Path(tempfile.mkdtemp())
    draw = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(12):
            image = Image.fromarray(draw.integers(0, 256, (40, 40, 3), np.uint8))
            image.save(folder / "images" / label / f"{number}.png")
    images, first = str(folder / "images"), str(folder / "images" / "cat" / "0.png")
    chosen = ["--model", "tiny", "--views", "4", "--device", "cpu"]
    runs = (str(folder / f"runs{number}") for number in range(2))
    bench = ["bench", "run", "--dataset", f"folder:{images}", "--method", "zero-shot,kld+cats", "--limit", "4"]
    print("classify:", files_called(lambda: run("classify", first, "--labels", "cat,dog", *chosen)))
    print("bench run:", files_called(lambda: run(*bench, *chosen, "--seeds", "1", "--out", next(runs))))
    print("calibrate:", files_called(lambda: run("calibrate", images, *chosen, "--out", str(folder / "x.json"))))
    settings = ServiceSettings(model="tiny", device="cpu", views=4)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as client:
        while client.get("/ready").status_code != 200:
            time.sleep(0.05)
        upload = {"image": ("image", Path(first).read_bytes())}
        post = lambda: client.post("/v1/classify", files=upload, data={"labels": ["cat", "dog"]})  # noqa: E731
        print("POST:", files_called(post))


if __name__ == "__main__":
    main()
