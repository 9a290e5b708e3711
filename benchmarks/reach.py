"""Ratios to earlier versions on a CPU with `pocket`, interleaved in one run; the machine may be busy.

python benchmarks/reach.py [--threads 2] [--repeats 5] [--auto 8] [--file pocket.onnx]

One image with 64 views and with the number that `--views auto` chose (--auto), an exported file against zero-shot, and
the first answer from the start of a process. The minimum over repetitions is compared, in wall and in processor time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LABELS = ["cat", "dog", "cup of coffee", "rocket", "motorcycle", "astronaut", "bicycle", "bird", "car", "tree"]
FIRST = "import poise; print(poise.Classifier({labels!r}, device='cpu')({image!r}).label)"


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
        print(f"{name:28} {wall:7.3f} s {wall / times[base][0]:6.2f}   processor {used:7.3f} s "
              f"{used / times[base][1]:6.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--auto", type=int, default=8, help="views that `poise calibrate --views auto` chose")
    parser.add_argument("--file", type=Path, help="exported file; made here if it is missing, which takes a minute")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(options.threads)
    from earlier import earlier_path

    from poise import Classifier
    from poise.export import export_onnx, open_onnx
    from poise.images.samples import sample_images

    image = sample_images()[0]
    full = Classifier(LABELS, device="cpu")
    fewer = Classifier(LABELS, full.encoder, views=options.auto)
    plain = Classifier(LABELS, full.encoder, "zero-shot")
    path = options.file or Path(tempfile.mkdtemp()) / "pocket.onnx"
    if not path.is_file():
        export_onnx(plain, path)
    exported = open_onnx(path)

    def earlier(classifier: Any) -> Callable[[], Any]:
        def work() -> Any:
            with earlier_path(full.encoder):
                return classifier(image)

        return work

    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} threads")
    rows = {"earlier": earlier(full), "64 views": lambda: full(image), f"{options.auto} views": lambda: fewer(image)}
    show(interleaved(rows, options.repeats), "earlier")
    show(interleaved({"zero-shot": lambda: plain(image), "zero-shot, exported file": lambda: exported(image)},
                     4 * options.repeats), "zero-shot")  # fmt: skip
    code = FIRST.format(labels=LABELS, image=str(image))
    wall = []
    for _ in range(options.repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        wall.append(time.perf_counter() - began)
    print(f"first answer from the start of a process: {min(wall):.2f} s")


if __name__ == "__main__":
    main()
