"""A server under load: ``python benchmarks/overload.py --times 10 --seconds 300`` (needs the extra `load`).

Its capacity is measured first, by clients that each wait for their answer. Then locust offers ``--times`` that rate,
with damaged images, requests beyond the limits and clients that leave among them (benchmarks/locustfile.py). It prints
the answers by status, the latencies of accepted requests, and the server's memory (Linux). All traffic stays on this
machine. A soak is the same with ``--times 0.5 --seconds 1800``.
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
from csv import DictReader
from pathlib import Path

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
        memory = _load(port, rate, options, server.pid)
        after = _capacity(port, bodies, options)
    finally:
        server.terminate()
        code = server.wait(120)
    quarter = max(1, len(memory) // 4)
    print(f"memory in MB: {memory[0]:.0f} at first, means of quarters "
          + ", ".join(f"{sum(part) / len(part):.0f}" for part in _parts(memory, quarter))
          + f", at most {max(memory):.0f}; capacity afterwards {after:.2f} images/s; exit code {code}")  # fmt: skip
    return code


def _capacity(port: int, bodies: list[bytes], options: argparse.Namespace) -> float:
    (images, seconds), _ = send_all(port, bodies, options.clients, options.measure)
    return images / seconds


def _load(port: int, rate: float, options: argparse.Namespace, pid: int) -> list[float]:
    """Run locust, print what it counted, and return the server's memory every few seconds."""
    users = max(options.users, 11)
    with tempfile.TemporaryDirectory() as folder:
        counts = Path(folder) / "counts.json"
        command = [
            sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--headless", "--only-summary",
            "--host", f"http://127.0.0.1:{port}", "-u", str(users), "-r", str(users), "-t", f"{options.seconds:g}s",
            "--stop-timeout", "60", "--csv", str(Path(folder) / "load"), "--loglevel", "ERROR",
        ]  # fmt: skip
        paths = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
        given = {"POISE_LOAD_RATE": f"{rate / users:.6f}", "POISE_LOAD_COUNTS": str(counts), "PYTHONPATH": paths}
        locust = subprocess.Popen(command, env={**os.environ, **given}, stdout=subprocess.DEVNULL)
        memory = []
        while locust.poll() is None:
            memory.append(resident_mb(pid))
            time.sleep(min(5.0, options.seconds / 20))
        for kind, number in json.loads(counts.read_text()).items():
            print(f"  {kind}: {number}")
        with (Path(folder) / "load_stats.csv").open() as lines:
            for row in DictReader(lines):
                if row["Name"] == "good":
                    print(f"good requests (answered or refused): {row['Request Count']}, p50 {row['50%']} ms, p99 "
                          f"{row['99%']} ms, failures {row['Failure Count']}")  # fmt: skip
    return memory


def _parts(values: list[float], size: int) -> list[list[float]]:
    return [values[at : at + size] for at in range(0, len(values), size)][:4]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--method", default="kld+cats")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--times", type=float, default=10.0, help="offered rate, in multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--measure", type=float, default=20.0, help="seconds to measure the capacity")
    parser.add_argument("--clients", type=int, default=16, help="that measure the capacity")
    parser.add_argument("--users", type=int, default=200, help="of locust")
    parser.add_argument("--queue", type=int, default=256, help="most images x views x methods that wait or run")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
