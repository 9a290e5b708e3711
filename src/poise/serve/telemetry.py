"""The metrics of a server, for Prometheus. No metric has a label with text that a user chose."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from poise.results import Results
from poise.serve.batcher import BatchReport

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128)
_CONFIDENCES = tuple(step / 20 for step in range(1, 21))


class Metrics:
    """All metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("poise_requests_total", "Answered requests.", ["route", "code"], registry=registry)
        self.request_seconds = Histogram(
            "poise_request_seconds", "Time of a request.", ["route"], buckets=_SECONDS, registry=registry
        )
        self.stage_seconds = Histogram(
            "poise_stage_seconds", "Time of an image in a stage.", ["stage"], buckets=_SECONDS, registry=registry
        )
        self.queue_items = Gauge("poise_queue_items", "Images that wait or are computed.", registry=registry)
        self.queue_cost = Gauge(
            "poise_queue_cost", "Images x views x tuned methods that wait or are computed.", registry=registry
        )
        self.queue_limit = Gauge("poise_queue_cost_limit", "The most of it (--max-queue).", registry=registry)
        self.batch_images = Histogram("poise_batch_images", "Images of a batch.", buckets=_IMAGES, registry=registry)
        self.rejected = Counter("poise_rejected_total", "Errors by their code.", ["reason"], registry=registry)
        self.fallback = Counter(
            "poise_fallback_total", "Zero-shot answers in place of tuned ones.", ["reason"], registry=registry
        )
        self.confidence = Histogram(
            "poise_confidence", "Confidence of the answers.", buckets=_CONFIDENCES, registry=registry
        )
        self.abstained = Counter("poise_abstained_total", "Answers with the decision to abstain.", registry=registry)
        about = ["model", "weights_sha", "method", "version", "calibration"]
        self.model = Gauge("poise_model_info", "The model.", about, registry=registry)
        ProcessCollector(registry=registry)  # memory, processor time and open files, on Linux

    def add_evidence(self, evidence: Callable[[], float]) -> None:
        """Add the metric of servers with a calibration; without one, 0 would look like an answer."""
        gauge = Gauge(
            "poise_exchangeability_evidence",
            "Evidence that images differ from the calibration images; without a difference it ever reaches E in at "
            "most 1 / E of all cases.",
            registry=self.registry,
        )
        gauge.set_function(evidence)

    def observe_answers(self, answers: Results) -> None:
        """Count the answers of one image."""
        for result in answers.values():
            self.confidence.observe(result.confidence)
            if result.fallback:
                self.fallback.labels("not_finite").inc()
            if result.decision == "abstain":
                self.abstained.inc()

    def observe_batch(self, report: BatchReport) -> None:
        """Count a batch."""
        self.batch_images.observe(report.images)
        for seconds in report.waited:
            self.stage_seconds.labels("queue").observe(seconds)
        self.stage_seconds.labels("compute").observe(report.computed)
