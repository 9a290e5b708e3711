"""Fills the gaps of a job with the server's defaults, and checks it against the server's limits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poise.errors import InvalidOptionError, LimitExceededError
from poise.inference.options import check_counts, find_methods
from poise.serve.limits import MAX_CHARACTERS
from poise.serve.settings import Job, ServiceSettings


@dataclass(frozen=True)
class PlannedJob:
    """A job with all its values, which is what images that are computed together have in common."""

    job: Job  # without a deadline
    cost: int  # of one image: its views x the methods that are tuned
    seconds: float  # until its deadline

    @property
    def calibrated(self) -> bool:
        """Whether its answers are calibrated, if the server has a calibration."""
        return not self.job.uncalibrated


def plan(job: Job, settings: ServiceSettings, images: int = 1) -> PlannedJob:
    """Return the job as the server will compute it for so many images.

    Raises:
        LimitExceededError: It asks for more than the server accepts.
        InvalidOptionError, UnknownNameError: An option or a method is not valid.
    """
    limits, calibrated = settings.limits, not job.uncalibrated
    filled = replace(
        job,
        labels=tuple(job.labels) or settings.labels,
        methods=tuple(job.methods) or settings.methods,
        template=settings.template if job.template is None else job.template,
        views=settings.views if job.views is None else job.views,
        seed=settings.seed if job.seed is None else job.seed,
        coverage=settings.coverage if job.coverage is None and calibrated else job.coverage,
        max_error=settings.max_error if job.max_error is None and calibrated else job.max_error,
        deadline=None,
        uncalibrated=job.uncalibrated or settings.calibration is None,
    )
    seconds = limits.seconds if job.deadline is None else job.deadline
    if not seconds > 0:
        raise InvalidOptionError(f"deadline is {seconds}.", hint="Use a number of seconds above 0.")
    check_counts(filled.views, None)
    views = filled.views or 1
    _check("images", images, limits.images, "too_many_images")
    _check("labels", len(filled.labels), limits.labels, "too_many_labels")
    _check("methods", len(filled.methods), limits.methods, "too_many_methods")
    _check("views per image", views, limits.views, "too_many_views")
    _check("seconds until the deadline", seconds, limits.seconds, "deadline_too_long")
    longest = max(map(len, (*filled.labels, filled.template or "")), default=0)
    _check("characters in a label or template", longest, MAX_CHARACTERS, "text_too_long")
    methods = find_methods(filled.methods)
    for method in methods:
        method.check_views(views)
    reads_views = filled.details or any(method.reads_views for method in methods)
    cost = (views if reads_views else 1) * max(1, sum(method.tunes for method in methods))
    return PlannedJob(replace(filled, methods=tuple(method.name for method in methods)), cost, seconds)


def _check(what: str, given: float, most: float, code: str) -> None:
    if given > most:
        raise LimitExceededError(
            f"The request has {given:,} {what}, and this server accepts {most:,}.",
            hint=f"Give at most {most:,}.",
            code=code,
        )
