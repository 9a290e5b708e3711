"""One model behind a queue: what the HTTP server and the demo page answer from."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from poise import __version__
from poise.backbones import load_model, resolve
from poise.backbones.fingerprint import fingerprint
from poise.calibration import Calibration, Monitor
from poise.data.items import NO_LABEL, Item
from poise.data.packed_features import is_packed, unpack
from poise.errors import (
    InvalidCalibrationError,
    InvalidOptionError,
    LimitExceededError,
    PoiseError,
    ServiceUnavailableError,
)
from poise.images.read import image_size
from poise.inference.batch_sizes import default_batch_size
from poise.inference.classifier import Classifier
from poise.loading.stored import check_made
from poise.options import option_values
from poise.results import Failure, Results
from poise.serve import readiness
from poise.serve.batcher import Batcher
from poise.serve.cache import ClassifierCache
from poise.serve.jobs import PlannedJob, plan
from poise.serve.limits import Limits
from poise.serve.settings import Job, ServiceSettings
from poise.serve.telemetry import Metrics
from poise.types import DualEncoder
from poise.views.recipe import ViewRecipe

_Key = tuple[Classifier[Any], bool, bool]  # what is computed together: one classifier, with details, from features
WATCHED = 1_000_000  # images that are compared with those of the calibration; ranks among more would become slow


class Service:
    """Classifies the images of many callers on one model, in batches.

    Args:
        settings: the model, the defaults and the limits.

    Example:
        >>> import numpy as np, io
        >>> from PIL import Image
        >>> stream = io.BytesIO()
        >>> Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(stream, "PNG")
        >>> service = Service(ServiceSettings(model="tiny", device="cpu"))
        >>> service.start()
        >>> answers = service.submit(stream.getvalue(), Job(labels=("cat", "dog"), views=4)).result()
        >>> list(answers)
        ['kld+cats']
        >>> service.close()
    """

    encoder: DualEncoder  # after `start`

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.checksum: str | None = None  # of the calibration, after `start`
        self.status = "starting"  # then "ready", "draining" and "closed"
        self._watch: Monitor | None = None  # of the images of calibrated answers
        self.cache = ClassifierCache(self._build, settings.limits)
        self._batcher: Batcher[_Key, bytes | Item, Results] | None = None

    @property
    def ready(self) -> bool:
        """Whether images are accepted."""
        return self.status == "ready"

    def start(self) -> None:
        """Load the model, start the queue, and check the answer for a test image; a second call does nothing.

        Raises:
            PoiseError: The settings are not valid, the model can't be loaded, or its answer is wrong.
        """
        if self._batcher is not None:
            return
        settings = self.settings
        plan(Job(labels=settings.labels or ("any",)), settings)  # before the model is loaded
        if settings.model.startswith("onnx:"):
            raise InvalidOptionError(
                f"'{settings.model}' has fixed labels, and a server's requests bring their own.",
                hint="Serve the model that it was exported from, or run the file with examples/onnx_classify.py.",
            )
        self.place = resolve(settings.device, settings.dtype)
        self.encoder = load_model(
            settings.model, device=settings.device, dtype=settings.dtype, logit_scale=settings.logit_scale
        )
        if settings.labels:
            made = self.classifier(self.plan(Job()))
            if made.label_guarantees is not None:
                made.label_guarantees.check()
        if isinstance(settings.calibration, Calibration):  # independent labels have no confidences to watch
            self._watch = settings.calibration.monitor()
            self.metrics.add_evidence(lambda: self.evidence or 0.0)
        if settings.calibration is not None:
            self.checksum = str(settings.calibration.to_dict()["checksum"])
        self._batcher = Batcher(
            self.work,
            capacity=settings.limits.queue,
            wait=settings.batch_wait,
            report=self.metrics.observe_batch,
            batch_cost=default_batch_size(self.encoder.device, settings.views) * settings.views,
            batch_items=settings.batch_size or default_batch_size(self.encoder.device, 1),
        )
        self.metrics.queue_items.set_function(lambda: len(self._batcher or ()))
        self.metrics.queue_cost.set_function(lambda: self._batcher.cost if self._batcher else 0)
        self.metrics.queue_limit.set(settings.limits.queue)
        self._batcher.start()
        self._check()
        info = (self.encoder.name, fingerprint(self.encoder), ", ".join(settings.methods))
        self.metrics.model.labels(*info, __version__, self.checksum or "").set(1)
        if self.status == "starting":
            self.status = "ready"

    def plan(self, job: Job, images: int = 1) -> PlannedJob:
        """Return the job with the server's defaults, after checking it against the server's limits.

        Args:
            job: what a request asks for.
            images: number of images in the request.
        """
        return plan(job, self.settings, images)

    def submit(self, image: bytes, job: Job) -> Future[Results]:
        """Queue one encoded image; thread-safe.

        Args:
            image: a JPEG, PNG, WebP, GIF, BMP or TIFF file, or stored features (`poise.data.packed_features`).
            job: what to do with it.

        Returns:
            The future results by method. An image that can't be classified gives a `PoiseError` in it.

        Raises:
            QueueFullError: The queue is full; ``retry_after`` is the number of seconds to wait.
            ServiceUnavailableError: The service is starting or closing.
            PoiseError: The job is not valid, or asks for more than the server's limits.
        """
        return self.submit_all([image], job)[0]

    def submit_all(self, images: Sequence[bytes], job: Job) -> list[Future[Results]]:
        """Queue several images, or none of them if the queue has not room for all; see `submit`.

        Args:
            images: encoded images.
            job: what to do with each of them.
        """
        return self.submit_planned(images, self.plan(job, len(images)))

    def submit_planned(self, images: Sequence[bytes], planned: PlannedJob) -> list[Future[Results]]:
        """Queue images of a job that was planned already; see `submit_all`.

        Args:
            images: encoded images.
            planned: what `plan` returned for this number of images.
        """
        if not self.ready:
            raise ServiceUnavailableError(f"The server is {self.status}.", hint="Try again in a few seconds.")
        try:
            classifier = self.classifier(planned)  # errors of labels and template
        except InvalidCalibrationError as error:
            hint = "Use the server's labels and options, or ask for an answer without calibration (uncalibrated)."
            raise InvalidCalibrationError(error.message, hint=hint) from None
        return self._queue(images, planned, classifier)

    def classifier(self, planned: PlannedJob) -> Classifier[Any]:
        """Return the classifier of a planned job, from the cache if it is there."""
        return self.cache.get(planned)

    @property
    def evidence(self) -> float | None:
        """How strongly the images so far differ from the calibration images (`poise.calibration.Monitor`)."""
        return None if self._watch is None else self._watch.evidence

    def stop(self) -> None:
        """Accept no more images."""
        self.status = "draining"
        if self._batcher is not None:
            self._batcher.stop()

    def close(self, drain: bool = True) -> None:
        """Stop, and wait for the images that were accepted; without ``drain``, those that wait fail."""
        self.stop()
        if self._batcher is not None:
            self._batcher.close(drain=drain)
        self.status = "closed"

    def _queue(
        self, images: Sequence[bytes], planned: PlannedJob, classifier: Classifier[Any]
    ) -> list[Future[Results]]:
        assert self._batcher is not None
        packed = {is_packed(image) for image in images}
        if len(packed) > 1:
            raise InvalidOptionError("The request has images and features.", hint="Send them in two requests.")
        recipe = classifier.read_recipe(details=planned.details)
        checked = [self._checked(image, recipe) for image in images]
        accepted = [source for source in checked if not isinstance(source, PoiseError)]
        deadline = time.monotonic() + planned.seconds
        key = classifier, planned.details, True in packed
        futures = iter(self._batcher.submit(key, accepted, cost=planned.cost, deadline=deadline))
        return [_failed(source) if isinstance(source, PoiseError) else next(futures) for source in checked]

    def _checked(self, image: bytes, recipe: ViewRecipe) -> bytes | Item | PoiseError:
        """Return what is queued of an image or of stored features, or why it is not; no pixel is decoded for that."""
        try:
            if is_packed(image):
                row = unpack(image)
                check_made(row.held.made, self.encoder, recipe)
                return Item(row.held.sources[0], NO_LABEL, row)
            width, height = image_size(image)
        except PoiseError as error:
            return error
        if width * height <= self.settings.limits.pixels:
            return image
        return LimitExceededError(
            f"The image has {width} x {height} pixels, and this server accepts {self.settings.limits.pixels:,}.",
            hint="Resize it.",
            code="too_many_pixels",
        )

    def _build(self, job: PlannedJob) -> Classifier[Any]:
        calibration = self.settings.calibration if job.calibrated else None
        return Classifier(**{**option_values(job.options), "model": self.encoder, "calibration": calibration})

    def work(self, key: _Key, images: list[bytes | Item]) -> Iterator[Results | Exception]:
        """Yield the results of images, or why there are none; the thread of the queue calls it."""
        classifier, details, _ = key
        for outcome in classifier.each(images, details=details):
            if isinstance(outcome, Failure):
                yield outcome.error()
                continue
            if self.status != "starting":  # the test image is no user's
                self.metrics.observe_answers(outcome)
                self._compare(outcome)
            yield outcome

    def _compare(self, answers: Results) -> None:
        """Show an image with a calibrated answer to the monitor; the thread of the queue is the only one that does."""
        watch, calibration = self._watch, self.settings.calibration
        if watch is None or calibration is None or watch.images >= WATCHED:
            return
        result = answers.get(calibration.recommended)
        if result is not None and result.raw_confidence is not None:
            watch.update(result)

    def _check(self) -> None:
        assert self._batcher is not None
        settings, image = self.settings, readiness.image()
        # The server's limits are for requests: the test image may ask for more than they allow.
        job = plan(readiness.job(settings), replace(settings, limits=Limits()))
        plain: Any = self._build(job)(image)  # first: what comes first takes longer, and would mislead the queue
        cost = min(job.cost, settings.limits.queue)
        served = self._batcher.submit((self.classifier(job), False, False), [image], cost=cost)[0].result()
        readiness.check(self.encoder.name, self.place.dtype_name, settings, served, plain)


def _failed(error: PoiseError) -> Future[Results]:
    future: Future[Results] = Future()
    future.set_exception(error)
    return future
