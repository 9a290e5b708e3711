"""Images per second of `poise classify` against `poise bench run`, on the same JPEG files, through both commands.

python benchmarks/classify_rate.py --model pocket --images 100        (a CPU)
python benchmarks/classify_rate.py --model random-vit --images 2000   (a GPU; ViT-B/16 with random weights)

Both commands run in this process, so imports, the CUDA context and compiled kernels are not measured. Loading the
model, encoding the labels, reading, tuning and writing results are.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch
from inputs import jpegs, labels
from typer.testing import CliRunner

from poise.cli.app import app

DISTINCT = 64  # files with different content; the others are copies of them


def main() -> None:
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = options.model
    if model == "random-vit":
        import random_vit

        model = random_vit.NAME
    names = labels(options.classes)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        _write(root / "few", names, options.warm)
        _write(root / "images", names, options.images)
        common = ["--model", model, "--method", options.method, "--views", str(options.views)]
        common += ["--device", options.device, *(["--batch-size", str(options.batch)] if options.batch else [])]
        for run in (_classify, _bench):
            run(root, "few", names, [*common])
        rates: dict[str, list[float]] = {"classify": [], "bench": []}
        for _ in range(options.repeats):
            for name, run in (("classify", _classify), ("bench", _bench)):
                rates[name].append(options.images / run(root, "images", names, common))
                print(f"{name:9s} {rates[name][-1]:8.2f} images/s", flush=True)
    best = {name: max(values) for name, values in rates.items()}
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    ratio = best["classify"] / best["bench"]
    print(f"{options.model}, {where}, {options.images} images, {options.views} views, {options.classes} classes")
    print(f"torch {torch.__version__}: classify / bench = {ratio:.3f} (best of {options.repeats})")


def _write(root: Path, names: list[str], count: int) -> None:
    """Write JPEG files in one folder per label, as in a `folder:` dataset."""
    files = jpegs(min(count, DISTINCT))
    for number in range(count):
        folder = root / names[number % len(names)]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05d}.jpg").write_bytes(files[number % len(files)])


def _classify(root: Path, part: str, names: list[str], common: list[str]) -> float:
    images = root / part
    return _run(
        ["classify", str(images), "--labels", ",".join(names), "--seed", "1", "--format", "json", *common],
        rows=len(list(images.rglob("*.jpg"))),
    )


def _bench(root: Path, part: str, names: list[str], common: list[str]) -> float:
    out = root / f"runs{time.monotonic_ns()}"
    return _run(["bench", "run", "--dataset", f"folder:{root / part}", "--seeds", "1", "--out", str(out), *common])


def _run(command: list[str], rows: int = 0) -> float:
    began = time.perf_counter()
    done = CliRunner().invoke(app, command)
    seconds = time.perf_counter() - began
    if done.exit_code:
        raise SystemExit(f"{' '.join(command)}\n{done.output[-2000:]}\n{done.exception!r}")
    assert not rows or len(json.loads(done.stdout)) == rows
    return seconds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket", help="a model of poise, or random-vit")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=8, help="images of a first run that is not measured")
    parser.add_argument("--repeats", type=int, default=1, help="number of runs of each command, in turns")
    parser.add_argument("--classes", type=int, default=47)
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--method", default="kld+cats")
    parser.add_argument("--batch", type=int, default=0, help="images per batch; 0: by device")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help=f"torch's CPU threads ({os.cpu_count()} cores)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
