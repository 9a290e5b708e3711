"""What users of a server do, for locust: most send good images, some send damaged ones, leave early or send too much.

`benchmarks/overload.py` starts a server and runs this file. For a server that runs already: `locust -f
benchmarks/locustfile.py --headless -u 32 -t 5m -H http://127.0.0.1:8000`, with its token in POISE_SERVE_TOKEN. Counts
by kind of user and status, and the times of answers in ms by status, are written to the file that the variable
POISE_LOAD_COUNTS names. A request without an answer counts as "lost", with the name of its error.
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import gevent
from inputs import jpegs, labels
from locust import FastHttpUser, constant_throughput, events, task

TOKEN = os.environ.get("POISE_SERVE_TOKEN", "")
RATE = float(os.environ.get("POISE_LOAD_RATE", "1"))  # requests per second of each user
OPTIONS: dict[str, Any] = {"labels": labels(10), **json.loads(os.environ.get("POISE_LOAD_OPTIONS", "{}"))}
IMAGES = jpegs(32)
SEEN: Counter[str] = Counter()
TIMES: defaultdict[int, list[float]] = defaultdict(list)
_numbers = count()


def body(image: bytes, **options: Any) -> bytes:
    return json.dumps({"image": base64.b64encode(image).decode(), **OPTIONS, **options}).encode()


BODIES = [body(image) for image in IMAGES]
DAMAGED = body(IMAGES[0][: len(IMAGES[0]) // 2])
TOO_MUCH = body(IMAGES[0], views=10_000)


class Visitor(FastHttpUser):
    """Sends an image every 1 / RATE seconds, whether or not the server keeps up."""

    abstract = True
    wait_time = constant_throughput(RATE)
    network_timeout = 120.0
    kind = "good"
    expected = (200, 429, 503, 504)

    def on_start(self) -> None:
        """Wait for a random time, or all users would ask at the same moments."""
        gevent.sleep(random.uniform(0, 1 / RATE))

    def send(self, content: bytes) -> None:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {TOKEN}"} if TOKEN else {})}
        with self.client.post(
            "/v1/classify", data=content, headers=headers, name=self.kind, catch_response=True
        ) as answer:
            SEEN[f"{self.kind} {self.outcome(answer)}"] += 1
            TIMES[answer.status_code].append(answer.request_meta["response_time"])
            if answer.status_code in self.expected:
                answer.success()
            else:
                answer.failure(f"status {answer.status_code}")

    def outcome(self, answer: Any) -> str:
        if answer.status_code:
            return str(answer.status_code)
        error = getattr(answer.error, "original", answer.error)
        return (
            "left" if self.kind == "impatient" and isinstance(error, TimeoutError) else f"lost {type(error).__name__}"
        )


class Good(Visitor):
    weight = 8

    @task
    def classify(self) -> None:
        self.send(BODIES[next(_numbers) % len(BODIES)])


class Damaged(Visitor):
    weight = 1
    kind = "damaged"
    expected = (422, 429, 503, 504)

    @task
    def classify(self) -> None:
        self.send(DAMAGED)


class TooMuch(Visitor):
    weight = 1
    kind = "too much"
    expected = (422, 429, 503)

    @task
    def classify(self) -> None:
        self.send(TOO_MUCH)


class Impatient(Visitor):
    """Leaves before the answer; locust counts that as status 0."""

    weight = 1
    kind = "impatient"
    expected = (0, 200, 429, 503)
    network_timeout = 0.3

    @task
    def classify(self) -> None:
        self.send(BODIES[0])


@events.quitting.add_listener
def write_counts(**kwargs: Any) -> None:
    if path := os.environ.get("POISE_LOAD_COUNTS"):
        Path(path).write_text(json.dumps({"counts": dict(sorted(SEEN.items())), "times": TIMES}))
