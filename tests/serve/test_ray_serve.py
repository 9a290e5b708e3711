"""`poise serve --engine ray` with one replica on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

import poise
from tests.serve.live import Live, body, eventually, png


@pytest.mark.slow
def test_ray_serve_gives_the_same_answers() -> None:
    pytest.importorskip("ray.serve", reason="install the 'ray' extra")
    with socket.create_server(("127.0.0.1", 0)) as free:
        live = Live(FastAPI(), free.getsockname()[1])
    env = {**os.environ, "PYTHONPATH": str(Path(poise.__file__).parents[1])}
    command = [sys.executable, "-m", "poise", "serve", "--engine", "ray", "--model", "tiny", "--device", "cpu"]
    process = subprocess.Popen([*command, "--port", str(live.port), "--views", "4"], stderr=subprocess.PIPE, env=env)

    def ready() -> bool:
        assert process.poll() is None
        try:
            return live.get("/ready").status_code == 200
        except httpx2.TransportError:
            return False

    try:
        eventually(ready, 240)
        answer = live.post("/v1/classify", json=body(png(0)))
        assert answer.status_code == 200
        expected = poise.Classifier(["cat", "dog", "car"], model="tiny", device="cpu", views=4)(png(0))
        assert answer.json()["results"]["kld+cats"]["probabilities"] == pytest.approx(expected.probabilities, abs=1e-5)
        assert live.post("/v1/classify", json=body(b"no image")).json()["error"]["code"] == "unreadable_image"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
