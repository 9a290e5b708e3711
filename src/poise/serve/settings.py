"""What a server is started with, and what a request asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poise.calibration import Calibration
from poise.calibration.independent import IndependentCalibration
from poise.inference.guarantees import trusted_options
from poise.inference.option_checks import check_guarantees
from poise.options import Options, RequestOptions, Row, check_names, request_rows, rows
from poise.prompts import check_labels
from poise.serve.limits import Limits


class Job:
    """What a request asks for beside its images.

    Args:
        asked: options by their names in a request: labels, methods, views, ...; see `poise.options`. Those that are
            left out, empty or None are the server's.
    """

    def __init__(self, **asked: Any) -> None:
        check_names(asked, (row.about.request for row in request_rows()))
        given: dict[str, Any] = {}
        for name, value in asked.items():
            if value is not None and value != [] and value != ():
                given[name] = tuple(value) if isinstance(value, list) else value
        self.options = _named(rows(Options), given)
        self.request = RequestOptions(**_named(rows(RequestOptions), given))


def _named(options: list[Row], given: dict[str, Any]) -> dict[str, Any]:
    """Return what was given of these options, by their own names instead of those in requests."""
    return {row.name: given[row.about.request] for row in options if row.about.request in given}


@dataclass(frozen=True, kw_only=True)
class ServiceSettings(Options):
    """What a server is started with: the options of requests that give none, and what is the server's own.

    Attributes:
        limits: what requests may ask for.
        batch_wait: seconds that an image waits for others to be computed with.
        hosts: names that requests may give in their Host header, without ports; empty: any.
        token: requests must show it ("Authorization: Bearer TOKEN"); empty: none is needed.
    """

    batch_wait: float = 0.005
    hosts: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_guarantees(self.calibration, self.coverage, self.max_error, self.reject)
        if self.labels:
            check_labels(self.labels, fewest=1 if self.one_label or self.independent else 2)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of requests without methods."""
        return (self.method,) if isinstance(self.method, str) else tuple(self.method)

    @classmethod
    def of_calibration(cls, calibration: Calibration | IndependentCalibration, **given: Any) -> ServiceSettings:
        """Return the settings under which ``calibration`` was made, with its recommended method.

        Args:
            calibration: what `poise calibrate` wrote.
            given: settings that replace those of the calibration; it must be valid for them.
        """
        return cls(**{**trusted_options(calibration, given), **given, "calibration": calibration})
