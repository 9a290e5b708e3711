"""The bodies of requests and responses."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from poise.serve.settings import Job

_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_OPTIONS: dict[str, Any] = {"labels": ["cat", "dog"], "methods": ["zero-shot"], "views": 8}


class RequestBody(BaseModel):
    """The options of a request; those that are left out are the server's."""

    model_config = ConfigDict(extra="forbid", strict=True)

    labels: list[str] = Field([], description="Class names; empty: those of the server.")
    methods: list[str] = Field([], description="Names of methods, such as kld+cats or zero-shot.")
    template: str | None = Field(None, description="Prompt with {} for the label.")
    views: int | None = Field(None, ge=1, le=2**31, description="Views per image, the plain image included.")
    seed: int | None = Field(None, ge=0, lt=2**63, description="Seed of the random views.")
    details: bool = Field(False, description="Whether to return intermediate results.")
    coverage: FiniteFloat | None = Field(None, gt=0, lt=1, description="Coverage of prediction sets.")
    max_error: FiniteFloat | None = Field(None, gt=0, lt=1, description="Share of wrong answers that is allowed.")
    deadline: FiniteFloat | None = Field(None, gt=0, description="Seconds after which the answer is of no use.")
    uncalibrated: bool = Field(False, description="Answer without the server's calibration.")

    def job(self) -> Job:
        """Return what the service is asked for."""
        values: dict[str, Any] = {name: getattr(self, name) for name in RequestBody.model_fields}
        return Job(**{**values, "labels": tuple(self.labels), "methods": tuple(self.methods)})


class ClassifyRequest(RequestBody):
    """One image and options."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"image": _PIXEL, **_OPTIONS}]})

    image: str = Field(description="An image file, in base64. Addresses and paths are not accepted.")


class BatchRequest(RequestBody):
    """Several images and the options of all of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"images": [_PIXEL, _PIXEL], **_OPTIONS}]})

    images: list[str] = Field(min_length=1, description="Image files, in base64.")


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
    parameters: ZeroShotParameters


class ErrorDetail(BaseModel):
    """What went wrong, and what to do."""

    code: str = Field(description="Stable, for programs.", examples=["unreadable_image"])
    message: str
    hint: str
    request_id: str


class ErrorResponse(BaseModel):
    """The body of every response that is not a success."""

    error: ErrorDetail


class DecisionBody(BaseModel):
    """Whether an answer is confident enough to be used."""

    action: Literal["answer", "abstain"]
    threshold: float
    guarantee: str


class ResultBody(BaseModel):
    """One method's answer for one image; see `poise.Result`."""

    label: str
    confidence: float
    probabilities: dict[str, float] = Field(description="Of all labels, most probable first.")
    entropy: float
    margin: float
    fallback: bool
    degenerate: bool
    match: float
    agreement: float | None
    notes: list[str]
    raw_confidence: float | None = Field(description="Before calibration.")
    prediction_set: list[str] | None
    decision: DecisionBody | None
    details: dict[str, Any] | None


class ResponseBody(BaseModel):
    """What a response says about how its answers were computed."""

    request_id: str
    model: str
    calibrated: bool = Field(description="Whether the probabilities are those of the server's calibration.")
    views: int
    seed: int


class ClassifyResponse(ResponseBody):
    """The answers for one image, by method."""

    results: dict[str, ResultBody]


class BatchItem(BaseModel):
    """The answers for one image, or the reason why there are none."""

    results: dict[str, ResultBody] | None = None
    error: ErrorDetail | None = None


class BatchResponse(ResponseBody):
    """One item for each image, in order."""

    items: list[BatchItem]


class ScoredLabel(BaseModel):
    """A label and its probability."""

    score: float
    label: str


class ServedModel(BaseModel):
    """The model of this server, its defaults and its limits."""

    name: str
    fingerprint: str
    device: str
    dtype: str
    labels: list[str] = Field(description="Labels of requests without labels.")
    methods: list[str]
    views: int
    calibrated: bool
    limits: dict[str, int | float]


class ModelList(BaseModel):
    """The models of this server."""

    models: list[ServedModel]


class Health(BaseModel):
    """The state of the server."""

    status: str
