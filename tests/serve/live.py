"""A server on a free loopback port, images to send, and a service whose work can be held back."""

from __future__ import annotations

import asyncio
import base64
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
from fastapi import FastAPI
from PIL import Image

from poise.results import Results
from poise.serve.http.app import create_app
from poise.serve.http.uvicorn_server import Address, DrainingServer
from poise.serve.service import Service
from poise.serve.settings import Job, ServiceSettings

SOON = 60.0  # seconds; a generous limit for what takes milliseconds
LABELS = ["cat", "dog", "car"]


def png(seed: int, size: int = 24, darker: int = 1) -> bytes:
    """An image of noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8) // darker
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def body(image: bytes, **options: Any) -> dict[str, Any]:
    return {"image": base64.b64encode(image).decode(), "labels": LABELS, "views": 4, **options}


def eventually(holds: Callable[[], bool], seconds: float = SOON) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.01)


def settings(**changes: Any) -> ServiceSettings:
    return ServiceSettings(**{"model": "tiny", "device": "cpu", "views": 4, **changes})


class HeldService(Service):
    """A service that computes nothing while its gate is closed."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings)
        self.gate, self.computed, self.holding = threading.Event(), 0, False
        self.gate.set()

    def work(self, job: Job, images: list[bytes]) -> Iterator[Results | Exception]:
        self.holding = True
        assert self.gate.wait(SOON)
        self.holding = False
        self.computed += len(images)
        return super().work(job, images)

    @property
    def waiting(self) -> int:
        return len(self._batcher or ())


@dataclass
class Live:
    """A running server."""

    app: FastAPI
    port: int
    server: DrainingServer | None = None  # if it runs in this process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self.server is not None
        return self.server.servers[0].get_loop()

    @property
    def service(self) -> Any:
        return self.app.state.service

    def client(self, **options: Any) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=SOON, trust_env=False, **options)

    def post(self, path: str, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.post(path, **options)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.get(path, **options)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=SOON)


@contextmanager
def running(service: Service, *, wait: bool = True, page: bool = False) -> Iterator[Live]:
    """Serve in a thread of this process until the block ends."""
    app = create_app(service.settings, service, page=page)
    server = DrainingServer(app, Address(port=0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            live = Live(app, listener.getsockname()[1], server)
            if wait:
                eventually(lambda: service.ready or app.state.failure is not None)
                assert app.state.failure is None
            yield live
        finally:
            if isinstance(service, HeldService):
                service.gate.set()
            server.should_exit = True
            thread.join(SOON)
