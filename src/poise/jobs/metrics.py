"""The metrics of a job, for Prometheus: a page that this process serves on the loopback address while the job runs."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from poise.errors import InvalidOptionError, MissingDependencyError, reason_of
from poise.jobs.done import Done


class JobMetrics:
    """Counts what a job does; as a context manager, it serves the numbers under ``http://127.0.0.1:PORT/metrics``.

    Args:
        port: where; 0 for any that is free.
        shards: of the whole job.
        finished: shards that earlier attempts have done.
    """

    def __init__(self, port: int, shards: int, finished: int = 0) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Gauge
        except ImportError:
            raise MissingDependencyError.of("--metrics-port", "prometheus-client", "serve") from None
        self._port, self.registry = port, CollectorRegistry()
        self._images = Counter("poise_job_images", "Images that were computed.", registry=self.registry)
        self._failures = Counter(
            "poise_job_failures", "Images without a result, by code.", ["code"], registry=self.registry
        )
        self._shards = Gauge("poise_job_shards", "Shards of the job.", ["state"], registry=self.registry)
        self._seconds = Counter("poise_job_worker_seconds", "Seconds of all workers.", registry=self.registry)
        self._shards.labels("all").set(shards)
        self._shards.labels("finished").set(finished)
        self._shards.labels("unreachable").set(0)
        self._server: tuple[Any, threading.Thread] | None = None

    def __enter__(self) -> JobMetrics:
        from prometheus_client import start_http_server

        try:
            self._server = start_http_server(self._port, addr="127.0.0.1", registry=self.registry)
        except OSError as error:
            raise InvalidOptionError(
                f"--metrics-port {self._port} can't be used: {reason_of(error)}.", hint="Give another port, or 0."
            ) from None
        self.port = self._server[0].server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server[0].shutdown()
            self._server[0].server_close()
            self._server[1].join()

    def add(self, done: Done) -> None:
        """Count a shard."""
        if done.problem:
            self._shards.labels("unreachable").inc()
            return
        self._shards.labels("finished").inc()
        self._images.inc(done.images)
        self._seconds.inc(done.seconds)
        for code, number in done.failures.items():
            self._failures.labels(code).inc(number)
