"""Fills the gaps of a job with the server's defaults, and checks it against the server's limits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from unicodedata import category

from poise.errors import InvalidLabelsError, InvalidOptionError, LimitExceededError
from poise.inference.independent import independent_method
from poise.inference.option_checks import check_counts, find_methods
from poise.options import Options, option_values, promise_rows
from poise.serve.limits import MAX_CHARACTERS
from poise.serve.settings import Job, ServiceSettings
from poise.text import printable


@dataclass(frozen=True)
class PlannedJob:
    """A job as the server will compute it.

    Attributes:
        options: all of them, but without the calibration, of which a server has one.
        details: whether results contain intermediate results.
        calibrated: whether the server's calibration is used.
        cost: of one image: its views x the methods that are tuned.
        seconds: until its deadline.
    """

    options: Options
    details: bool
    calibrated: bool
    cost: int = field(compare=False)
    seconds: float = field(compare=False)


def plan(job: Job, settings: ServiceSettings, images: int = 1) -> PlannedJob:
    """Return the job as the server will compute it for so many images.

    Raises:
        LimitExceededError: It asks for more than the server accepts.
        InvalidOptionError, UnknownNameError: An option or a method is not valid.
    """
    limits, asked = settings.limits, job.request
    defaults = {**option_values(settings), "method": settings.methods, "calibration": None}
    if asked.uncalibrated:
        defaults |= dict.fromkeys(row.name for row in promise_rows())
    if "labels" in job.options:
        defaults |= {"parents": (), "groups": ()}  # of the server's own labels
    options = Options(**{**defaults, **job.options})
    seconds = limits.seconds if asked.deadline is None else asked.deadline
    if not seconds > 0:
        raise InvalidOptionError(f"deadline is {seconds}.", hint="Use a number of seconds above 0.")
    if options.independent:
        options = replace(options, method=(independent_method(options.method),), views=1)
    check_counts(options.views, None)
    _check("images", images, limits.images, "too_many_images")
    _check("labels", len(options.labels), limits.labels, "too_many_labels")
    _check("methods", len(options.method), limits.methods, "too_many_methods")
    _check("views per image", options.views, limits.views, "too_many_views")
    _check("seconds until the deadline", seconds, limits.seconds, "deadline_too_long")
    structure = max(len(options.parents), len(options.groups))
    _check("paths or groups of labels", structure, limits.labels, "too_many_labels")
    texts = (*options.labels, *options.parents, *options.groups, options.template or "")
    longest = max(map(len, texts), default=0)
    _check("characters in a label or template", longest, MAX_CHARACTERS, "text_too_long")
    if strange := next((text for text in texts if not _is_plain(text)), None):
        problem = f"A label or the template has a control character: {printable(strange)[:100]!r}."
        raise InvalidLabelsError(problem, hint="Remove it.")
    methods = find_methods(options.method, options.views)
    reads_views = asked.details or any(method.reads_views for method in methods)
    cost = (options.views if reads_views else 1) * max(1, sum(method.tunes for method in methods))
    options = replace(options, method=tuple(method.name for method in methods))
    calibrated = settings.calibration is not None and not asked.uncalibrated
    return PlannedJob(options, asked.details, calibrated, cost, seconds)


def _is_plain(text: str) -> bool:
    return not any(category(character) == "Cc" for character in text)


def _check(what: str, given: float, most: float, code: str) -> None:
    if given > most:
        raise LimitExceededError(
            f"The request has {given:,} {what}, and this server accepts {most:,}.",
            hint=f"Give at most {most:,}.",
            code=code,
        )
