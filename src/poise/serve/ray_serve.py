"""The same app on Ray Serve: several replicas, each with a model and a queue of its own, behind Ray's HTTP proxy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from poise.cluster.connection import connect, is_gpu
from poise.errors import MissingDependencyError
from poise.serve.http.app import create_app
from poise.serve.http.uvicorn_server import Address
from poise.serve.service import Service
from poise.serve.settings import ServiceSettings

_NAME = "poise"


def deployment(settings: ServiceSettings, *, replicas: int = 1) -> Any:
    """Return a Ray Serve deployment of the app, for `ray.serve.run(deployment(settings).bind())`."""
    from ray import serve

    def build() -> FastAPI:  # in the replica, which is given requests as soon as there is an app
        service = Service(settings)
        service.start()
        return create_app(settings, service)

    # Batches are made by each replica's own queue, which also refuses what is too much (429); Ray only balances.
    options: dict[str, Any] = {"num_gpus": 1} if is_gpu(settings.device) else {}
    return serve.deployment(
        serve.ingress(build)(),
        name=_NAME,
        num_replicas=replicas,
        max_ongoing_requests=settings.limits.connections,
        ray_actor_options=options,
        graceful_shutdown_timeout_s=settings.limits.seconds,
    )


def run(
    settings: ServiceSettings, address: Address, ray_address: str, replicas: int, *, ready: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT; replicas answer the requests that they have accepted. See `uvicorn_server.run`."""
    connect(ray_address)
    try:
        from ray import serve
    except ImportError:
        raise MissingDependencyError.of("`poise serve --engine ray`", "ray[serve]", "ray-serve") from None
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve.start(proxy_location="HeadOnly", http_options={"host": address.host, "port": address.port})
    try:
        serve.run(deployment(settings, replicas=replicas).bind(), name=_NAME, route_prefix="/")
        ready(f"http://{address.host}:{address.port}")
        stopped.wait()
    finally:
        serve.delete(_NAME)
        if not ray_address:  # others may use Serve on a cluster
            serve.shutdown()
