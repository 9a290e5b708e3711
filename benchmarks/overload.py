"""A server under load (needs the extra `load`), with ten times what it can do or with a third of it.

python benchmarks/overload.py          # ten times its capacity for 5 minutes
python benchmarks/overload.py --soak   # a third of it for 30 minutes

Its capacity is measured first, by clients that each wait for their answer. Then locust offers ``--times`` that rate,
with damaged images, requests beyond the limits and clients that leave among them (benchmarks/locustfile.py). It prints
the answers by status, the requests that got none with the names of their errors, the times of answers, and the server's
memory (Linux). The exit code is 1 if a request was lost. All traffic stays on this machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from inputs import jpegs, labels
from processes import resident_mb
from serving import send_all, started

HERE = Path(__file__).parent


def main() -> int:
    options = _options()
    names = labels(10)
    arguments = ["--views", str(options.views), "--method", options.method, "--model", options.model]
    server, port = started([*arguments, "--device", options.device, "--max-queue", str(options.queue)])
    try:
        images = [base64.b64encode(image).decode() for image in jpegs(32)]
        bodies = [json.dumps({"image": image, "labels": names}).encode() for image in images]
        send_all(port, bodies, options.clients, 5.0)  # warm
        capacity = _capacity(port, bodies, options)
        rate = capacity * options.times
        print(f"capacity {capacity:.2f} images/s; offered {rate:.2f} requests/s for {options.seconds:g} s", flush=True)
        memory, seen = _load(port, rate, options, server.pid)
        after = _capacity(port, bodies, options)
    finally:
        server.terminate()
        code = server.wait(120)
    middle = memory[len(memory) // 2]
    print(
        f"memory in MB: {memory[0]:.0f} at the start, {middle:.0f} in the middle, {memory[-1]:.0f} at the end, "
        f"at most {max(memory):.0f}; capacity afterwards {after:.2f} images/s; exit code {code}"
    )
    return code or int(_summarise(seen) > 0)


def _capacity(port: int, bodies: list[bytes], options: argparse.Namespace) -> float:
    (images, seconds), _ = send_all(port, bodies, options.clients, options.measure)
    return images / seconds


def _load(port: int, rate: float, options: argparse.Namespace, pid: int) -> tuple[list[float], dict[str, Any]]:
    """Run locust, and return the server's memory every few seconds and what locust counted."""
    users = max(options.users, 11)
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        command = [
            sys.executable,
            "-m",
            "locust",
            "-f",
            str(HERE / "locustfile.py"),
            "--headless",
            "--only-summary",
            "--skip-log",
            "--host",
            f"http://127.0.0.1:{port}",
            "-u",
            str(users),
            "-r",
            str(users),
            "-t",
            f"{options.seconds:g}s",
            "--stop-timeout",
            "60",
        ]
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        given = {"POISE_LOAD_RATE": f"{rate / users:.6f}", "POISE_LOAD_COUNTS": str(counts), "PYTHONPATH": paths}
        locust = subprocess.Popen(command, env={**os.environ, **given}, stdout=subprocess.DEVNULL)
        memory = []
        while locust.poll() is None:
            memory.append(resident_mb(pid))
            time.sleep(min(5.0, options.seconds / 20))
        return memory, json.loads(counts.read_text())


def _summarise(seen: dict[str, Any]) -> int:
    """Print what locust counted, and return the number of lost requests."""
    counts: dict[str, int] = seen["counts"]
    for kind, number in counts.items():
        print(f"  {kind}: {number}")
    for status, times in sorted(seen["times"].items()):
        if status != "0":
            p50, p99 = (1e-3 * float(np.quantile(times, at)) for at in (0.5, 0.99))
            print(f"  status {status}: {len(times)}, p50 {p50:.2f} s, p99 {p99:.2f} s")
    lost = sum(number for kind, number in counts.items() if " lost " in kind)
    print(f"{sum(counts.values())} requests, {lost} lost connections")
    return lost


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--method", default="kld+cats")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--soak", action="store_true", help="a third of the capacity for 30 minutes")
    parser.add_argument("--times", type=float, help="offered rate / capacity (default: 10, soak: 1/3)")
    parser.add_argument("--seconds", type=float, help="of load (default: 300, soak: 1800)")
    parser.add_argument("--measure", type=float, default=20.0, help="seconds to measure the capacity")
    parser.add_argument("--clients", type=int, default=16, help="that measure the capacity")
    parser.add_argument("--users", type=int, default=200, help="of locust")
    parser.add_argument("--queue", type=int, default=256, help="most images x views x methods that wait or run")
    options = parser.parse_args()
    options.times = options.times or (1 / 3 if options.soak else 10.0)
    options.seconds = options.seconds or (1800.0 if options.soak else 300.0)
    return options


if __name__ == "__main__":
    sys.exit(main())
