"""The image tower of `pocket` in several engines on a CPU, interleaved in one run, and how far features differ.

python benchmarks/towers.py [--views 64] [--threads 2] [--repeats 5] [--file pocket.onnx]

The file is made here if it is missing, which takes a minute. OpenVINO is measured if it is installed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from earlier import earlier_path
from reach import interleaved, show

from poise import Classifier
from poise.backbones.loaders.onnx_file import FEATURES, INPUT, start_session
from poise.export import export_onnx


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--file", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    classifier = Classifier(["cat", "dog"], method="zero-shot", device="cpu")
    encoder: Any = classifier.encoder
    path = options.file or Path(tempfile.mkdtemp()) / "pocket.onnx"
    if not path.is_file():
        export_onnx(classifier, path)
    side = encoder.image.size
    views = torch.randn(options.views, 1, 3, side, side, generator=torch.Generator().manual_seed(0))
    session = start_session(path.read_bytes(), str(path))

    def earlier() -> np.ndarray:
        with earlier_path(encoder):
            return encoder.encode_images(views).numpy()

    def in_parts(run: Callable[[np.ndarray], np.ndarray], size: int = 4) -> Callable[[], np.ndarray]:
        return lambda: np.concatenate([run(part.numpy()) for part in views.split(size)])

    rows: dict[str, Callable[[], np.ndarray]] = {
        "earlier": earlier,
        "now": lambda: encoder.encode_images(views).numpy(),
        "onnxruntime": in_parts(lambda part: session.run([FEATURES], {INPUT: part})[0]),
    }
    try:
        import openvino
    except ImportError:
        openvino = None
    for precision in ("f32", "bf16") if openvino else ():
        settings = {"INFERENCE_NUM_THREADS": options.threads, "INFERENCE_PRECISION_HINT": precision}
        compiled = openvino.Core().compile_model(str(path), "CPU", settings)
        rows[f"OpenVINO {precision}"] = in_parts(lambda part, run=compiled: run({INPUT: part})[FEATURES])
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {options.threads} threads")
    reference = earlier()
    for name, work in rows.items():
        print(f"{name:28} largest change of a feature {np.abs(work() - reference).max():.1e}")
    show(interleaved(rows, options.repeats), "earlier")


if __name__ == "__main__":
    main()
