"""Ratios to an earlier commit on a CPU with `pocket`, in one run, and the first answer of a process.

python benchmarks/reach.py [--against f065af4] [--threads 2] [--repeats 3] [--auto 8] [--file pocket.onnx]

One image with 64 views, and with the number that `--views auto` chose (--auto), in torch and in OpenVINO if it is
installed. Each row is a process of its own, with the sources of one commit; the processes of all rows alternate, and
the smallest time of all repetitions counts. Then an exported file against zero-shot, in one process, and the first
answer from the start of a process until it is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LABELS = ["cat", "dog", "cup of coffee", "rocket", "motorcycle", "astronaut", "bicycle", "bird", "car", "tree"]
ONE_IMAGE = """
import sys, time
import torch
torch.set_num_threads(int(sys.argv[1]))
from poise import Classifier
from poise.images.samples import sample_images
classify, image, times = Classifier({labels!r}, **{options!r}), sample_images()[0], []
classify(image)
for _ in range(5):
    wall, used = time.perf_counter(), time.process_time()
    classify(image)
    times.append((time.perf_counter() - wall, time.process_time() - used))
print(*map(min, zip(*times)))
"""
FIRST = """
import poise
print(poise.Classifier({labels!r}, device="cpu", views=64, method={method!r})({image!r}).label, flush=True)
"""


def interleaved(rows: dict[str, Callable[[], Any]], repeats: int) -> dict[str, tuple[float, float]]:
    """Return the smallest wall time and processor time of each row."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for work in rows.values():
        work()
    for _ in range(repeats):
        for name, work in rows.items():
            wall, used = time.perf_counter(), time.process_time()
            work()
            times[name].append((time.perf_counter() - wall, time.process_time() - used))
    return {name: (min(wall for wall, _ in each), min(used for _, used in each)) for name, each in times.items()}


def show(times: dict[str, tuple[float, float]], base: str) -> None:
    for name, (wall, used) in times.items():
        print(
            f"{name:32} {wall:7.3f} s {wall / times[base][0]:6.2f}   processor {used:7.3f} s "
            f"{used / times[base][1]:6.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", default="f065af4", help="commit before views were encoded side by side")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--auto", type=int, default=8, help="views that `poise calibrate --views auto` chose")
    parser.add_argument("--file", type=Path, help="exported file; made here if it is missing, which takes a minute")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", options.against, "src"], check=True, capture_output=True
        ).stdout
        earlier.mkdir()
        subprocess.run(["tar", "-x", "-C", str(earlier)], input=archive, check=True)
        show(_one_image(earlier / "src", options), f"64 views, {options.against}")
        _show_exported(options, Path(folder))
    for method in ("zero-shot", "kld+cats"):
        code = FIRST.format(labels=LABELS, image=str(_image()), method=method)
        print(f"first answer of a process, {method}: {min(_first_line(code) for _ in range(options.repeats)):.2f} s")


def _image() -> Path:
    from poise.images.samples import sample_images

    return sample_images()[0]


def _one_image(earlier: Path, options: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Return the smallest wall and processor time of each row."""
    rows: dict[str, tuple[Path, dict[str, Any]]] = {
        f"64 views, {options.against}": (earlier, {"device": "cpu", "views": 64}),
        "64 views": (ROOT / "src", {"device": "cpu", "views": 64}),
        f"{options.auto} views": (ROOT / "src", {"device": "cpu", "views": options.auto}),
    }
    for precision in ("float32", "bfloat16") if importlib.util.find_spec("openvino") else ():
        for views in (64, options.auto):
            chosen = {"device": "openvino", "dtype": precision, "views": views}
            rows[f"{views} views, {precision}, OpenVINO"] = ROOT / "src", chosen
    times: dict[str, list[list[float]]] = {name: [] for name in rows}
    for _ in range(options.repeats):
        for name, (source, given) in rows.items():
            command = [sys.executable, "-c", ONE_IMAGE.format(labels=LABELS, options=given), str(options.threads)]
            surroundings = {**os.environ, "PYTHONPATH": str(source)}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=surroundings)
            times[name].append([float(part) for part in done.stdout.split()])
    return {name: (min(wall for wall, _ in each), min(used for _, used in each)) for name, each in times.items()}


def _show_exported(options: argparse.Namespace, folder: Path) -> None:
    import torch

    torch.set_num_threads(options.threads)
    from poise import Classifier
    from poise.export import export_onnx, open_onnx

    plain = Classifier(LABELS, method="zero-shot", device="cpu")
    path = options.file or folder / "pocket.onnx"
    if not path.is_file():
        export_onnx(plain, path)
    exported, image = open_onnx(path), _image()
    rows = {"zero-shot": lambda: plain(image), "zero-shot, exported file": lambda: exported(image)}
    show(interleaved(rows, 5 * options.repeats), "zero-shot")


def _first_line(code: str) -> float:
    """Return the seconds from the start of a process to its first line."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - began
    if process.returncode or not line:
        raise RuntimeError(f"the process ended with exit code {process.returncode}")
    return seconds


if __name__ == "__main__":
    main()
