"""Gives edited inputs to the readers of files from others, and lists every error that is not poise's own.

    python tools/fuzz/fuzz.py images bench_config --inputs 100000
    python tools/fuzz/fuzz.py --list

The inputs are those that hypothesis draws from the seeds 0, 1, ... (1000 of each), so a finding can be repeated with
its bytes. An input that takes more than 20 seconds twice, or more memory than the limit, is a finding as well.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tools.fuzz import folder_targets, service_targets  # noqa: E402, F401  add targets
from tools.fuzz.targets import TARGETS, clean_up  # noqa: E402

BATCH = 1000  # inputs per seed
SECONDS = 20
RESULTS = Path(__file__).with_name("results.jsonl")


def fuzz(work: Callable[[bytes], None], inputs: int, first_seed: int = 0) -> dict[str, str]:
    """Call a function with so many inputs; return each distinct error with the bytes that caused it first."""
    findings: dict[str, str] = {}
    for batch in range(0, inputs, BATCH):
        _batch(work, min(BATCH, inputs - batch), first_seed + batch // BATCH, findings)
    return findings


def _batch(work: Callable[[bytes], None], inputs: int, number: int, findings: dict[str, str]) -> None:
    @seed(number)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.binary(min_size=1, max_size=40))
    def attempt(data: bytes) -> None:
        error = outcome(work, data)
        if error:
            findings.setdefault(error, data.hex())

    attempt()


def outcome(work: Callable[[bytes], None], data: bytes) -> str:
    """Return the error of one input and where it came from; nothing if there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            work(data)
        return ""
    except (Exception, TooSlow) as error:
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        return f"{type(error).__name__} at {' < '.join(reversed(places[-3:]))}"


class TooSlow(BaseException):
    """An input that takes too long; not an `Exception`, which readers would turn into an error of poise's own."""


def _too_slow(*_: object) -> None:
    raise TooSlow(f"more than {SECONDS} seconds")


def timed(work: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return the function with a limit of time; a slow input is tried again, because the process may be paused."""

    def run(data: bytes) -> None:
        try:
            _limited(work, data)
        except TooSlow:
            _limited(work, data)

    return run


def _limited(work: Callable[[bytes], None], data: bytes) -> None:
    signal.alarm(SECONDS)
    try:
        work(data)
    finally:
        signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gigabytes", type=int, default=8, help="limit on memory")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--repeat", default="", metavar="HEX", help="run one input and show its traceback")
    arguments = parser.parse_args()
    if arguments.list:
        for target in TARGETS.values():
            print(f"{target.name:17} {target.about}")
        return
    resource.setrlimit(resource.RLIMIT_AS, (arguments.gigabytes << 30, arguments.gigabytes << 30))
    signal.signal(signal.SIGALRM, _too_slow)
    logging.disable()
    chosen = [TARGETS[name] for name in arguments.targets or TARGETS]
    if arguments.repeat:
        chosen[0].read(bytes.fromhex(arguments.repeat))
        return
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    found = False
    for target in chosen:
        began = time.monotonic()
        findings = fuzz(timed(target.run), arguments.inputs, arguments.seed)
        row = {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": commit.stdout.strip(),
            "target": target.name,
            "inputs": arguments.inputs,
            "seconds": round(time.monotonic() - began),
            "findings": findings,
        }
        print(json.dumps(row), flush=True)
        with RESULTS.open("a") as file:
            file.write(json.dumps(row) + "\n")
        found = found or bool(findings)
    clean_up()
    sys.exit(found)


if __name__ == "__main__":
    main()
