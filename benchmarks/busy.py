"""One image on a machine that others use, too: its time beside busy processes, relative to its quiet time.

python benchmarks/busy.py [--processes 4] [--threads 2] [--repeats 5] [--device openvino]

The aim is a ratio of at most 3. "earlier" divides each operation among the threads, which spin while they wait.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext

LABELS = ["cat", "dog", "cup of coffee", "rocket", "motorcycle", "astronaut", "bicycle", "bird", "car", "tree"]
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # ends with this process


def measure(earlier: bool, repeats: int, device: str) -> list[float]:
    """Return the seconds that single images take, in this process."""
    from earlier import earlier_path

    import poise
    from poise.images.samples import sample_images

    classify = poise.Classifier(LABELS, views=64, device="cpu" if earlier else device)
    image, times = sample_images()[0], []
    with earlier_path(classify.encoder) if earlier else nullcontext():
        for _ in range(repeats + 1):
            began = time.perf_counter()
            classify(image)
            times.append(time.perf_counter() - began)
    return times[1:]


def in_process(options: argparse.Namespace, earlier: bool) -> float:
    """Return the median time in a fresh process, where variables of OpenMP take effect."""
    policy = {"OMP_WAIT_POLICY": "ACTIVE" if earlier else "PASSIVE", "OMP_NUM_THREADS": str(options.threads)}
    command = [
        sys.executable,
        __file__,
        "--measure",
        "--repeats",
        str(options.repeats),
        "--device",
        options.device,
        *["--earlier"] * earlier,
    ]
    done = subprocess.run(command, env=os.environ | policy, capture_output=True, text=True, check=True)
    return statistics.median(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu or openvino")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--earlier", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.earlier, options.repeats, options.device)))
        return
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores (the quiet time needs a load of 0)")
    quiet = {earlier: in_process(options, earlier) for earlier in (False, True)}
    busy = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(options.processes)]
    try:
        loaded = {earlier: in_process(options, earlier) for earlier in (False, True)}
    finally:
        for process in busy:
            process.kill()
    for earlier, name in ((False, "now"), (True, "earlier")):
        print(
            f"{name:8} quiet {quiet[earlier]:6.2f} s, beside {options.processes} processes {loaded[earlier]:6.2f} s: "
            f"{loaded[earlier] / quiet[earlier]:5.2f} x"
        )


if __name__ == "__main__":
    main()
