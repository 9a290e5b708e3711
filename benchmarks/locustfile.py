"""Load for a running server: `locust -f benchmarks/locustfile.py --headless -u 32 -t 5m -H http://127.0.0.1:8000`.

Users send images one after the other; one in ten sends a damaged file, which must be refused with 422. Full queues
(429) are counted apart. Set POISE_SERVE_TOKEN if the server needs a token.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from locust import HttpUser, task

sys.path.insert(0, str(Path(__file__).parent))
from inputs import jpegs

IMAGES = jpegs(32)
TOKEN = os.environ.get("POISE_SERVE_TOKEN", "")


class Client(HttpUser):
    def on_start(self) -> None:
        if TOKEN:
            self.client.headers["Authorization"] = f"Bearer {TOKEN}"

    @task(9)
    def classify(self) -> None:
        self._send(random.choice(IMAGES), "image", 200)

    @task(1)
    def damaged(self) -> None:
        self._send(random.choice(IMAGES)[:5000], "damaged image", 422)

    def _send(self, image: bytes, name: str, expected: int) -> None:
        fields = {"labels": ["cat", "dog", "car"]}
        with self.client.post(
            "/v1/classify", files={"image": image}, data=fields, name=name, catch_response=True
        ) as answer:
            if answer.status_code == 429:
                answer.failure("queue full")
            elif answer.status_code == expected:
                answer.success()
            else:
                answer.failure(f"status {answer.status_code}")
