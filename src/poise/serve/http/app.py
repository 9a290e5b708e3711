"""The HTTP interface of a `Service`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from poise import __version__
from poise.backbones.fingerprint import fingerprint
from poise.errors import DeadlineExceededError, PoiseError, ServiceUnavailableError
from poise.results import Results
from poise.serve.http import bodies, problems, schemas
from poise.serve.http.api_page import PATH, add_page
from poise.serve.http.middleware import OPEN, Gate, Observe
from poise.serve.http.openapi import describe_token, errors, request_body
from poise.serve.jobs import PlannedJob
from poise.serve.service import Service
from poise.serve.settings import Job, ServiceSettings

_log = logging.getLogger(__name__)
Outcome = Results | BaseException


def create_app(settings: ServiceSettings, service: Service | None = None, *, page: bool = False) -> FastAPI:
    """Return the app. It starts the service in the background and closes it when the server stops.

    Args:
        settings: the model, the defaults and the limits.
        service: a service with these settings that others use, too; None: one of its own.
        page: whether to add a page on which routes can be tried, at /docs.

    Returns:
        The app. ``app.state.service`` is the service. When it is ready, ``app.state.on_ready`` is called. If it can't
        be started, ``app.state.failure`` is the error, and ``app.state.on_failure`` is called, which logs the error
        unless it is replaced.
    """
    service = service or Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(app))
        yield
        await starting
        await run_in_threadpool(service.close)

    app = FastAPI(
        title="poise",
        version=__version__,
        description="Zero-shot image classification with confidence.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,  # their pages would load scripts from elsewhere
    )
    app.state.service, app.state.failure = service, None
    app.state.on_ready, app.state.on_failure = lambda: None, lambda: _log.error("%s", app.state.failure)
    _add_health(app, service)
    _add_classification(app, service)
    describe_token(app.openapi(), OPEN, needed=bool(settings.token))
    if page:
        add_page(app)
    problems.install(app, service.metrics)
    # The page contains nothing of the server; a browser can't send a token with its first request.
    app.add_middleware(Gate, metrics=service.metrics, settings=settings, also_open=[PATH] if page else [])
    app.add_middleware(Observe, metrics=service.metrics, routes=frozenset(app.openapi()["paths"]))
    return app


async def _start(app: FastAPI) -> None:
    try:
        await run_in_threadpool(app.state.service.start)
    except Exception as error:
        if app.state.service.status != "starting":  # it was told to stop meanwhile, which is no failure
            return
        app.state.failure = error
        app.state.service.stop()  # who waits until it has started, as the demo page does, need not wait any longer
        app.state.on_failure()
    else:
        if app.state.service.ready:
            app.state.on_ready()


def _add_health(app: FastAPI, service: Service) -> None:
    @app.head("/live", include_in_schema=False)
    @app.get("/live", operation_id="live", tags=["health"])
    async def live() -> schemas.Health:
        """Whether the process runs."""
        return schemas.Health(status="alive")

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", operation_id="ready", tags=["health"], responses=errors(503))
    async def ready() -> schemas.Health:
        """Whether images are accepted: after the check of a test image, until the server is stopped."""
        _check_ready(service)
        return schemas.Health(status=service.status)

    @app.get("/metrics", operation_id="metrics", tags=["health"], responses=errors(401), response_class=Response)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", operation_id="models", tags=["models"], responses=errors(401, 503))
    async def models() -> schemas.ModelList:
        """Return the model, the defaults and the limits."""
        _check_ready(service)
        settings, encoder, place = service.settings, service.encoder, service.place
        model = schemas.ServedModel(
            name=encoder.name,
            fingerprint=fingerprint(encoder),
            device=place.device_name,
            dtype=place.dtype_name,
            labels=list(settings.labels),
            methods=list(settings.methods),
            views=settings.views,
            template=settings.template,
            calibrated=settings.calibration is not None,
            calibration=service.checksum,
            coverage=settings.coverage,
            max_error=settings.max_error,
            version=__version__,
            limits=asdict(settings.limits),
        )
        return schemas.ModelList(models=[model])


def _add_classification(app: FastAPI, service: Service) -> None:
    fields = (
        service.settings.limits.labels + service.settings.limits.methods + len(schemas.ClassifyRequest.model_fields)
    )
    classified: dict[str, Any] = {"tags": ["classification"], "responses": errors()}

    @app.post(
        "/v1/classify",
        operation_id="classify",
        response_model=schemas.ClassifyResponse,
        **classified,
        openapi_extra=request_body(schemas.ClassifyRequest, "image"),
    )
    async def classify(request: Request) -> Response:
        """Classify one image."""
        if bodies.is_form(request):
            body, files = await bodies.read_form(request, schemas.ClassifyRequest, "image", fields)
        else:
            body = await bodies.read_json(request, schemas.ClassifyRequest, "image")
            files = [bodies.decode(body.image)]
        planned, (answers,) = await _classify(request, service, files, body.job())
        about = _about(request, service, planned)
        return _as_json(schemas.ClassifyResponse(**about, results=_or_raise(answers)), _evidence(service, planned))

    @app.post(
        "/v1/batch",
        operation_id="batch",
        response_model=schemas.BatchResponse,
        **classified,
        openapi_extra=request_body(schemas.BatchRequest, "images"),
    )
    async def batch(request: Request) -> Response:
        """Classify several images; each has its own results or its own error."""
        files: Sequence[bytes | PoiseError]
        if bodies.is_form(request):
            body, files = await bodies.read_form(request, schemas.BatchRequest, "images", fields)
        else:
            body = await bodies.read_json(request, schemas.BatchRequest, "images")
            files = [_decoded(image) for image in body.images]
        planned, outcomes = await _classify(request, service, files, body.job())
        items = [_item(outcome, request, service) for outcome in outcomes]
        about = _about(request, service, planned)
        return _as_json(schemas.BatchResponse(**about, items=items), _evidence(service, planned))

    @app.post(
        "/v1/zero-shot-image-classification",
        operation_id="zero_shot_image_classification",
        **classified,
        openapi_extra=request_body(schemas.ZeroShotRequest),
    )
    async def zero_shot(request: Request, response: Response) -> list[schemas.ScoredLabel]:
        """Classify one image, in the shape of Hugging Face's inference API, with the server's first method."""
        body = await bodies.read_json(request, schemas.ZeroShotRequest)
        job = Job(
            labels=tuple(body.parameters.candidate_labels),
            template=body.parameters.hypothesis_template,
            methods=service.settings.methods[:1],
            uncalibrated=body.parameters.uncalibrated,
        )
        planned, (answers,) = await _classify(request, service, [bodies.decode(body.inputs)], job)
        response.headers["X-Poise-Calibrated"] = str(planned.calibrated).lower()
        response.headers.update(_evidence(service, planned))
        (result,) = _or_raise(answers).values()
        return [schemas.ScoredLabel(score=prob, label=label) for label, prob in result.probabilities.items()]


async def _classify(
    request: Request, service: Service, images: Sequence[bytes | PoiseError], job: Job
) -> tuple[PlannedJob, list[Outcome]]:
    """Queue images, and wait for them until the deadline or until the client leaves."""
    request.state.images = len(images)
    planned = service.plan(job, len(images))
    readable = [image for image in images if isinstance(image, bytes)]
    futures = await run_in_threadpool(service.submit_planned, readable, planned)
    tasks = [asyncio.wrap_future(future) for future in futures]
    outcomes = iter(await _finished(request, tasks, planned.seconds))
    return planned, [next(outcomes) if isinstance(image, bytes) else image for image in images]


async def _finished(request: Request, tasks: list[asyncio.Future[Results]], seconds: float) -> list[Outcome]:
    left: asyncio.Future[Any] = asyncio.create_task(_disconnected(request))
    everything: asyncio.Future[Any] = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.wait([everything, left], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        gone = PoiseError("The client has left.", code="client_left")
        late = gone if left.done() else DeadlineExceededError.after(seconds)
        return [(task.exception() or task.result()) if task.done() else late for task in tasks]
    finally:  # also if this request is cancelled: nothing is computed for a client that has left
        left.cancel()
        everything.cancel()
        with suppress(asyncio.CancelledError):
            await everything


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _about(request: Request, service: Service, planned: PlannedJob) -> dict[str, Any]:
    return {
        "request_id": request.state.request_id,
        "model": service.encoder.name,
        "calibrated": planned.calibrated,
        "views": planned.options.views,
        "seed": planned.options.seed,
    }


def _evidence(service: Service, planned: PlannedJob) -> dict[str, str]:
    """Return the header of calibrated answers that says how strongly images differ from the calibration images."""
    evidence = service.evidence if planned.calibrated else None
    return {} if evidence is None else {"X-Poise-Evidence": f"{evidence:.3g}"}


def _as_json(body: BaseModel, headers: dict[str, str]) -> Response:
    """Return a response whose JSON is made here, once: FastAPI passes responses on as they are."""
    return Response(body.model_dump_json(), media_type="application/json", headers=headers)


def _item(outcome: Outcome, request: Request, service: Service) -> schemas.BatchItem:
    if not isinstance(outcome, BaseException):
        return schemas.BatchItem(results=outcome)
    error = problems.detail(outcome, request.state.request_id)
    service.metrics.rejected.labels(error["code"]).inc()
    return schemas.BatchItem(error=schemas.ErrorDetail(**error))


def _or_raise(outcome: Outcome) -> Results:
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _decoded(image: str) -> bytes | PoiseError:
    try:
        return bodies.decode(image)
    except PoiseError as error:
        return error


def _check_ready(service: Service) -> None:
    if not service.ready:
        raise ServiceUnavailableError(f"The server is {service.status}.", hint="Try again in a few seconds.")
