"""The row of `tools/chaos.py` in which a job runs on three nodes, and everything in it is killed at random.

A kill is one of: a worker process, a node (its raylet and all that it started), or the command itself, which is then
started again with --resume. A job that is finished is compared with a local one, row by row, and the next one begins.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from ray.cluster_utils import Cluster

from tests.data.test_sources import write_shard
from tests.evaluate.attempt import make_images

SHARDS, EACH = 24, 6
PAUSES = (0.0, 3.0)  # seconds from a finished part to the next kill
PATIENCE = 90.0  # seconds without a finished part after which something is killed all the same


def run_with_kills(root: Path, count: Any, kills: int, seconds: float) -> None:
    """Kill until ``kills`` are reached or ``seconds`` have passed, and compare the rows of every finished job."""
    images = make_images(root / "jobs", classes=SHARDS, each=EACH)
    for shard in range(SHARDS):
        files = {f"{at}.png": (images / f"class{shard}" / f"{at}.png").read_bytes() for at in range(EACH)}
        write_shard(root / "tars" / f"{shard:03d}.tar", files)
    subprocess.run([*_command(root, "local"), "--threads", "1"], check=True)
    expected = _rows(root / "local")
    end, numbers, kinds = time.monotonic() + seconds, random.Random(0), Counter[str]()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})

    def left() -> int:
        return kills - count.kills if time.monotonic() < end else 0

    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        job = 0
        while left() > 0:
            folder = f"ray-{job}"
            while (code := _attempt(root, folder, cluster, nodes, numbers, kinds, count, left)) != 0:
                print(f"attempt ended with {code}; kills so far: {dict(kinds)}", flush=True)
                if time.monotonic() > end + 600:
                    raise SystemExit("the last job did not end")
            found = _rows(root / folder)
            same = found.equals(expected)
            print(f"job {job}: {len(found)} rows, {'equal' if same else 'DIFFERENT'}; kills: {dict(kinds)}", flush=True)
            count.finished += 1
            count.wrong += not same
            job += 1
    finally:
        cluster.shutdown()


def _command(root: Path, out: str) -> list[str]:
    chosen = ["--labels", "cat,dog,tree", "--model", "tiny", "--method", "zero-shot,kld+cats", "--views", "32"]
    shards = f"wds:{root}/tars/{{000..{SHARDS - 1:03d}}}.tar"
    plain = ["--device", "cpu", "--batch-size", "2", "--quiet", "--out", f"{root / out}/"]
    return [sys.executable, "-m", "poise", "classify", shards, *chosen, *plain]


def _attempt(
    root: Path,
    folder: str,
    cluster: Any,
    nodes: list[Any],
    numbers: random.Random,
    kinds: Counter[str],
    count: Any,
    left: Callable[[], int],
) -> int:
    """Run the command once, killing while it runs; return its exit code."""
    resume = ["--resume"] if (root / folder).exists() else []
    engine = ["--engine", "ray", "--address", cluster.address, "--actors", "2", *resume]
    command = subprocess.Popen([*_command(root, folder), *engine], stderr=subprocess.DEVNULL)
    done, since = _finished(root / folder), time.monotonic()
    while True:
        try:
            return command.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            pass
        if left() <= 0 or (_finished(root / folder) == done and time.monotonic() < since + PATIENCE):
            continue
        time.sleep(numbers.uniform(*PAUSES))
        done, since = _finished(root / folder), time.monotonic()
        kind = numbers.choice(["worker", "worker", "node", "driver"])
        if kind == "driver":
            command.send_signal(signal.SIGKILL)
        elif kind == "node":
            cluster.remove_node(nodes.pop(numbers.randrange(len(nodes))), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))
        elif not (workers := _workers([cluster.head_node, *nodes])):
            continue
        else:
            os.kill(numbers.choice(workers), signal.SIGKILL)
        kinds[kind] += 1
        count.kills += 1


def _finished(folder: Path) -> int:
    return len(list(folder.glob("_ledger/*.json")))


def _workers(nodes: list[Any]) -> list[int]:
    """Return the processes of actors that the raylets of these nodes have started."""
    raylets = {node.all_processes["raylet"][0].process.pid for node in nodes if node.all_processes.get("raylet")}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent in raylets and b"MapWorker" in folder.joinpath("cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


def _rows(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))
