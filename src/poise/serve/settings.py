"""What a server is started with, and what a request asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from poise.calibration import Calibration
from poise.defaults import DEFAULT_VIEWS
from poise.inference.classifier import DEFAULT_METHOD, DEFAULT_MODEL
from poise.inference.options import check_guarantees
from poise.serve.limits import Limits


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a request asks for beside its images. Empty or None: the server's default.

    Attributes:
        labels: class names.
        methods: names of methods.
        template: prompt with ``{}`` for the label.
        views: views per image, the plain image included.
        seed: of the random views.
        details: whether results contain intermediate results.
        coverage: of prediction sets; needs a calibration.
        max_error: share of wrong answers that decisions allow; needs a calibration.
        deadline: seconds until the answer is of no use.
        uncalibrated: answer without the server's calibration, which is valid for its own labels and options only.
    """

    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    template: str | None = None
    views: int | None = None
    seed: int | None = None
    details: bool = False
    coverage: float | None = None
    max_error: float | None = None
    deadline: float | None = None
    uncalibrated: bool = False


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """What a server is started with; see `poise.Classifier` for the options of the same names.

    Attributes:
        labels: of requests without labels; empty: every request must give its own.
        methods: of requests without methods.
        limits: what requests may ask for.
        batch_wait: seconds that an image waits for others to be computed with.
        hosts: names that requests may give in their Host header, without ports; empty: any.
        token: requests must show it ("Authorization: Bearer TOKEN"); empty: none is needed.
    """

    model: str = DEFAULT_MODEL
    device: str = "auto"
    dtype: str = "auto"
    labels: tuple[str, ...] = ()
    methods: tuple[str, ...] = (DEFAULT_METHOD,)
    template: str | None = None
    context: str = "auto"
    init: str = "template"
    views: int = DEFAULT_VIEWS
    augmix: bool = False
    seed: int = 0
    calibration: Calibration | None = None
    coverage: float | None = None
    max_error: float | None = None
    batch_size: int | None = None
    on_long_label: str = "error"
    batch_wait: float = 0.005
    hosts: tuple[str, ...] = ()
    token: str = field(default="", repr=False)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check_guarantees(self.calibration, self.coverage, self.max_error, None)

    @classmethod
    def of_calibration(cls, calibration: Calibration, **given: Any) -> ServiceSettings:
        """Return the settings under which ``calibration`` was made, with its recommended method.

        Args:
            calibration: what `poise calibrate` wrote.
            given: settings that replace those of the calibration; it must be valid for them.
        """
        stored = calibration.options()
        stored["labels"], stored["methods"] = tuple(stored["labels"]), tuple(stored.pop("method"))
        return cls(**{**stored, **given}, calibration=calibration)
