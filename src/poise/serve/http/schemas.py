"""The bodies of requests and responses."""

from __future__ import annotations

from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, create_model

from poise.options import RequestOptions, Row, request_rows, rows
from poise.results import Result
from poise.serve.settings import Job

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_OPTIONS: dict[str, Any] = {"labels": ["cat", "dog"], "methods": ["zero-shot"], "views": 8}


class RequestBody(BaseModel):
    """The options of a request; those that are left out are the server's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    def job(self) -> Job:
        """Return what the service is asked for."""
        return Job(**{row.about.request: getattr(self, row.about.request) for row in request_rows()})


B = TypeVar("B", bound=RequestBody)


def with_options(kind: type[B]) -> type[B]:
    """Return the class with a field for each option that a request may give."""
    options: dict[str, Any] = {row.about.request: _field(row) for row in request_rows()}
    return create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, **options)


def _field(row: Row) -> tuple[Any, Any]:
    """Return the type and the field of an option; without a value it is the server's."""
    facts: dict[str, Any] = {"description": row.about.help, **row.about.bounds}
    if any(get_origin(kind) is tuple for kind in (row.kind, *get_args(row.kind))):
        return list[str], Field(default=[], **facts)
    if row.kind is bool and row in rows(RequestOptions):
        return bool, Field(default=row.default, **facts)
    kinds = {float: FiniteFloat}
    plain = [kind for kind in get_args(row.kind) or (row.kind,) if kind is not type(None)]
    return Union[*(kinds.get(kind, kind) for kind in plain), None], Field(default=None, **facts)


@with_options
class ClassifyRequest(RequestBody):
    """One image and options."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": _PIXEL, **_OPTIONS}]})

    image: str = Field(description="An image file, or features, in base64. Addresses and paths are not accepted.")


@with_options
class BatchRequest(RequestBody):
    """Several images and the options of all of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"images": [_PIXEL, _PIXEL], **_OPTIONS}]})

    images: list[str] = Field(min_length=1, description="Image files, or features, in base64.")


class ZeroShotParameters(BaseModel):
    """The parameters of Hugging Face's task, and one of poise."""

    model_config = ConfigDict(strict=True)

    candidate_labels: list[str] = Field(min_length=1, description="Class names.")
    hypothesis_template: str | None = Field(None, description="Prompt with {} for the label.")
    uncalibrated: bool = Field(False, description="Answer without the server's calibration.")


class ZeroShotRequest(BaseModel):
    """A request in the shape of Hugging Face's zero-shot image classification."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={"examples": [{"inputs": _PIXEL, "parameters": {"candidate_labels": ["cat", "dog"]}}]},
    )

    inputs: str = Field(description="An image file, in base64. Addresses and paths are not accepted.")
    parameters: ZeroShotParameters = Field(description="The labels and options.")


class ErrorDetail(BaseModel):
    """What went wrong, and what to do."""

    code: str = Field(description="Stable, for programs.", examples=["unreadable_image"])
    message: str = Field(description="What was given and what is accepted, for people.")
    hint: str = Field(description="What to do about it; may be empty.")
    request_id: str = Field(description="Of the request, for the server's log.")


class ErrorResponse(BaseModel):
    """The body of every response that is not a success."""

    error: ErrorDetail = Field(description="The error.")


class ResponseBody(BaseModel):
    """What a response says about how its answers were computed."""

    request_id: str = Field(description="Of the request, for the server's log.")
    model: str = Field(description="The server's model.")
    calibrated: bool = Field(description="Whether the probabilities are those of the server's calibration.")
    views: int = Field(description="Views per image, the plain image included.")
    seed: int = Field(description="Seed of the random views.")


class ClassifyResponse(ResponseBody):
    """The answers for one image, by method."""

    results: dict[str, Result] = Field(description="The answers by method.")


class BatchItem(BaseModel):
    """The answers for one image, or the reason why there are none."""

    results: dict[str, Result] | None = Field(
        default=None, description="The answers by method; null if there is an error."
    )
    error: ErrorDetail | None = Field(default=None, description="Why there are no answers; null if there are.")


class BatchResponse(ResponseBody):
    """One item for each image, in order."""

    items: list[BatchItem] = Field(description="One for each image, in order.")


class ScoredLabel(BaseModel):
    """A label and its probability."""

    score: float = Field(description="Probability of the label.")
    label: str = Field(description="The label.")


class ServedModel(BaseModel):
    """The model of this server, its defaults and its limits."""

    name: str = Field(description="Name of the model.")
    fingerprint: str = Field(description="Hash of its weights, preprocessing and tokenizer.")
    device: str = Field(description="Where it runs.")
    dtype: str = Field(description="Its number format.")
    labels: list[str] = Field(description="Labels of requests without labels.")
    methods: list[str] = Field(description="Methods of requests without methods.")
    views: int = Field(description="Views per image of requests without views.")
    template: str | None = Field(description="Prompt of requests without one; null: the usual one.")
    calibrated: bool = Field(description="Whether the server has a calibration.")
    calibration: str | None = Field(description="Checksum of the calibration, which is in its file; null: none.")
    coverage: float | None = Field(
        description="Coverage of prediction sets of requests that ask for none; null: no sets."
    )
    max_error: float | None = Field(description="Certified error of requests that ask for none; null: no decisions.")
    version: str = Field(description="Version of poise.")
    limits: dict[str, int | float] = Field(description="The most that the server accepts, by name.")


class ModelList(BaseModel):
    """The models of this server."""

    models: list[ServedModel] = Field(description="The models; a server has one.")


class Health(BaseModel):
    """The state of the server."""

    status: str = Field(description="alive; of /ready: starting, ready, draining or closed.")
