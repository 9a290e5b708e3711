"""Images per second through `poise serve` against the same work by `Classifier.each`, with latencies and memory.

python benchmarks/serving.py --model pocket --views 8 --seconds 120
python benchmarks/serving.py --model pocket --views 8 --seconds 300 --clients 32 --out serving.json

The server is a process of its own; its clients are threads of this process, each of which sends its next image when
its last one is answered. The same images are classified by turns through the server and without it (``--rounds``), so
that both see the same machine. On a busy machine, the processor time per image says more than the rate. It and the
memory (MB) are read from /proc, on Linux only.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from itertools import count, cycle
from pathlib import Path

import numpy as np
import torch
from inputs import jpegs, labels
from processes import processor_seconds, resident_mb

from poise.inference.classifier import Classifier

DISTINCT = 32  # images with different content


def main() -> None:
    options = _options()
    images, names = jpegs(DISTINCT), labels(options.classes)
    classify = Classifier(names, options.model, [options.method], views=options.views, device=options.device)
    server, port = started(
        [
            "--model",
            options.model,
            "--method",
            options.method,
            "--views",
            str(options.views),
            "--device",
            options.device,
            "--max-queue",
            "1000000",
        ]
    )
    try:
        bodies = [json.dumps({"image": base64.b64encode(image).decode(), "labels": names}).encode() for image in images]
        rounds, each = [], options.seconds / options.rounds / 2
        _direct(classify, images, min(each, 5.0))  # warm
        send_all(port, bodies, options.clients, min(each, 5.0))
        for number in range(options.rounds):
            before = time.process_time()
            direct = _direct(classify, images, each)
            middle, busy = time.process_time(), processor_seconds(server.pid)
            served, latencies = send_all(port, bodies, options.clients, each)
            row = {
                "direct": direct[0] / direct[1],
                "served": served[0] / served[1],
                "direct_cpu": (middle - before) / direct[0],
                "served_cpu": (processor_seconds(server.pid) - busy) / served[0],
                "p50": float(np.quantile(latencies, 0.5)),
                "p99": float(np.quantile(latencies, 0.99)),
                "rss": resident_mb(server.pid),
            }
            rounds.append(row)
            print(f"{number + 1:3d}", " ".join(f"{name} {value:.3f}" for name, value in row.items()), flush=True)
        batches = _metric(port, "poise_batch_images_sum") / _metric(port, "poise_batch_images_count")
    finally:
        server.terminate()
        code = server.wait(60)
    mean = {name: float(np.mean([row[name] for row in rounds])) for name in rounds[0]}
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{os.cpu_count()} x {platform.machine()}"
    print(
        f"{options.model}, {options.method}, {options.views} views, {options.classes} labels, {options.clients} "
        f"clients, {where}, torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"exit code {code}"
    )
    print(
        f"server {mean['served']:.2f} images/s, without it {mean['direct']:.2f}: ratio "
        f"{mean['served'] / mean['direct']:.3f}; processor time per image {mean['served_cpu']:.3f} s, without it "
        f"{mean['direct_cpu']:.3f} s: ratio {mean['direct_cpu'] / mean['served_cpu']:.3f}"
    )
    print(
        f"p50 {mean['p50']:.2f} s, p99 {mean['p99']:.2f} s; {batches:.1f} images per batch; memory from "
        f"{rounds[0]['rss']:.0f} to {rounds[-1]['rss']:.0f} MB"
    )
    if options.out:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": ""}, "rounds": rounds, "mean": mean}))


def started(arguments: list[str]) -> tuple[subprocess.Popen[str], int]:
    """Start a server on a free port, and return it with its port when it is ready."""
    command = [sys.executable, "-m", "poise", "serve", "--port", "0", *arguments]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    listening = re.search(r"http://127.0.0.1:(\d+)", server.stderr.readline())
    assert listening, server.stderr.read()
    threading.Thread(target=server.stderr.read, daemon=True).start()
    port = int(listening[1])
    while server.poll() is None:
        if _get(port, "/ready")[0] == 200:
            return server, port
        time.sleep(0.2)
    raise SystemExit("the server did not start")


def _direct(classify: Classifier, images: list[bytes], seconds: float) -> tuple[int, float]:
    """Return the images of one call with a stream of images, and its time."""
    began = time.perf_counter()

    def stream():
        for image in cycle(images):
            if time.perf_counter() - began > seconds:
                return
            yield image

    done = sum(1 for _ in classify.each(stream()))
    return done, time.perf_counter() - began


def send_all(port: int, bodies: list[bytes], clients: int, seconds: float) -> tuple[tuple[int, float], list[float]]:
    """Return the images of concurrent clients and their time together, and the time of each request."""
    latencies: list[float] = []
    numbers = count()
    began = time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        while time.perf_counter() - began < seconds:
            sent = time.perf_counter()
            body = bodies[next(numbers) % len(bodies)]
            connection.request("POST", "/v1/classify", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            assert answer.status == 200, content
            latencies.append(time.perf_counter() - sent)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (len(latencies), time.perf_counter() - began), latencies


def _get(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def _metric(port: int, name: str) -> float:
    rows = (line.split() for line in _get(port, "/metrics")[1].splitlines())
    return next(float(row[1]) for row in rows if row[0] == name)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--method", default="kld+cats")
    parser.add_argument("--views", type=int, default=8)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120, help="of all rounds together")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the rounds as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
