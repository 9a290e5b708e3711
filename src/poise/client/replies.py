"""What a server answers, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from poise.errors import PoiseError, RemoteError
from poise.results import Result


@dataclass(frozen=True)
class Reply:
    """The answers for one image.

    Attributes:
        results: the answers by method.
        request_id: of the request, for the server's log.
        model: the server's model.
        calibrated: whether the probabilities are calibrated.
        views: views per image.
        seed: of the views.
    """

    results: dict[str, Result]
    request_id: str
    model: str
    calibrated: bool
    views: int
    seed: int

    @property
    def result(self) -> Result:
        """The answer of the only method; raises an error if there are several."""
        if len(self.results) != 1:
            raise PoiseError(f"There are results of {', '.join(self.results)}.", hint="Use results[METHOD].")
        return next(iter(self.results.values()))


@dataclass(frozen=True)
class RemoteModel:
    """The model of a server, its defaults and its limits."""

    name: str
    fingerprint: str  #: hash of its weights, preprocessing and tokenizer
    device: str
    dtype: str
    labels: tuple[str, ...]  #: those of requests without labels
    methods: tuple[str, ...]  #: those of requests without methods
    views: int  #: per image, of requests without views
    calibrated: bool  #: whether the server has a calibration
    limits: dict[str, float]  #: the most that the server accepts, by name
    template: str | None = None  #: of requests without one; None: the usual one
    calibration: str | None = None  #: checksum of the calibration, which is in its file
    coverage: float | None = None  #: of prediction sets, of requests that ask for none
    max_error: float | None = None  #: certified error, of requests that ask for none
    version: str = ""  #: of poise on the server; older ones do not say it


def read_reply(body: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> Reply:
    """Read the answers for one image from the JSON of a response; those of a batch are given as ``results``."""
    values = {name: body[name] for name in ("request_id", "model", "calibrated", "views", "seed")}
    found = body["results"] if results is None else results
    return Reply({name: Result.from_dict(result) for name, result in found.items()}, **values)


def read_batch(body: Mapping[str, Any]) -> list[Reply | RemoteError]:
    """Read the answers and errors of a batch."""
    items = body["items"]
    return [read_error(item["error"]) if item["error"] else read_reply(body, item["results"]) for item in items]


def read_models(body: Mapping[str, Any]) -> list[RemoteModel]:
    """Read a server's models."""
    rows = [_known(RemoteModel, row) for row in body["models"]]
    names = ("labels", "methods")
    return [RemoteModel(**{**row, **{name: tuple(row[name]) for name in names}}) for row in rows]


def read_error(error: Mapping[str, Any], status: int = 200) -> RemoteError:
    """Read an error."""
    return RemoteError(
        str(error["message"]),
        hint=str(error["hint"]),
        code=str(error["code"]),
        status=status,
        request_id=str(error["request_id"]),
    )


def _known(kind: type[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    return {row.name: body[row.name] for row in fields(kind)}
