"""From what was typed into the page to its panels, through the server's queue."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from poise import methods
from poise.defaults import DEFAULT_METHOD
from poise.demo.advice import Basis, advice_card
from poise.demo.bars import answer_card
from poise.demo.calls import Call, calls_card
from poise.demo.example_rows import find_example, remark
from poise.demo.kept_views import thumbnails, views_block
from poise.demo.markup import alert, card, text
from poise.errors import InvalidLabelsError, PoiseError, UnreadableImageError
from poise.results import Result, Results
from poise.serve.service import Service
from poise.serve.settings import Job

_log = logging.getLogger(__name__)
PANELS = ("status", "answer", "advice", "views", "calls")
ZERO = "zero-shot"
COVERAGE = 0.9  # of prediction sets, where the server has no other
_TICK = 0.3  # seconds between two messages about progress
Panels = dict[str, str]  # those that changed, as HTML


@dataclass(frozen=True)
class Upload:
    """A file that the page received, and the name that it had."""

    path: Path
    name: str


@dataclass(frozen=True)
class Question:
    """What was entered into the page."""

    upload: Upload | None
    labels: str
    methods: tuple[str, ...] = (DEFAULT_METHOD,)
    template: str = ""
    views: int | None = None
    seed: int | None = None
    calibrated: bool = False
    url: str = "http://127.0.0.1:8000"


def split_labels(written: str) -> tuple[str, ...]:
    """Return labels that are separated by commas or lines."""
    labels = tuple(label.strip() for label in re.split(r"[,\n]", written) if label.strip())
    if not labels:
        raise InvalidLabelsError("There are no labels.", hint="Write some, such as: cat, dog, rabbit.")
    return labels


def answer(service: Service, question: Question) -> Iterator[Panels]:
    """Yield the panels that change: zero-shot as soon as it is there, then progress, then the tuned answers."""
    try:
        yield from _Answering(service, question).steps()
    except PoiseError as error:
        name = question.upload.name if question.upload else ""
        message = error.message.replace("<bytes>", name)  # what the queue calls an image
        yield {**dict.fromkeys(PANELS, ""), "status": alert(message, error.hint)}
    except Exception:
        _log.exception("the page could not answer")
        said = alert("The page could not answer.", "The terminal in which it was started says why.")
        yield {**dict.fromkeys(PANELS, ""), "status": said}


class _Answering:
    def __init__(self, service: Service, question: Question) -> None:
        self.service, self.question = service, question
        self.labels = split_labels(question.labels)
        if question.upload is None:
            raise UnreadableImageError("There is no image.", hint="Drop one, paste one, or choose an example.")
        self.image, self.file = question.upload.path.read_bytes(), question.upload.name
        self.tuned = tuple(name for name in methods.every_name() if name in question.methods and name != ZERO)

    def steps(self) -> Iterator[Panels]:
        start = time.monotonic()
        while self.service.status == "starting":
            yield {"status": _status("Loading the model …", seconds=time.monotonic() - start)}
            time.sleep(_TICK)
        start = time.monotonic()
        future = self.service.submit(self.image, self._job((ZERO,)))
        yield from _waiting(future, "Asking zero-shot", start)
        answers = future.result()
        seconds = {ZERO: time.monotonic() - start}
        yield self._panels(answers, self.tuned, seconds)
        if self.tuned:
            jobs = [self._job(names, details=True) for names in self._groups(self.tuned)]
            for job in jobs:  # one after the other, so that nothing is left in the queue if the page is closed
                future = self.service.submit(self.image, job)
                yield from _waiting(future, f"Tuning on views of the image: {', '.join(job.methods)}", start)
                answers |= future.result()
            seconds |= {", ".join(self.tuned): time.monotonic() - start}
            yield self._panels(answers, (), seconds) | {"views": self._views(answers, jobs[0])}

    def _groups(self, names: tuple[str, ...]) -> list[tuple[str, ...]]:
        """Split methods into those that the calibration contains and the others; a job is calibrated or not."""
        groups = (tuple(name for name in names if self._calibrates(name) is used) for used in (True, False))
        return [group for group in groups if group]

    def _panels(self, answers: Results, waiting: tuple[str, ...], seconds: dict[str, float]) -> Panels:
        results = list(answers.values())
        main = self._main(answers)
        example = find_example(self.image, self.labels)
        note = f'<p class="lesson">{text(remark(example, main))}</p>' if example and not waiting else ""
        done = "; ".join(f"{text(name)} after {number:.2f} s" for name, number in seconds.items())
        return {
            "status": _status(f"Tuning {text(', '.join(waiting))} …", start=done) if waiting else _status(done),
            "answer": answer_card(results, main, waiting, note=note),
            "advice": advice_card(main, self._basis(main)),
            "views": "",
            "calls": calls_card(self._call(tuple(answers) + waiting)),
        }

    def _views(self, answers: Results, job: Job) -> str:
        details = [result.details for result in answers.values() if result.details]
        chosen = [at for each in details for at in each.selected_views]
        recipe = self.service.classifier(self.service.plan(job).job).recipe
        shown = thumbnails(self.image, recipe, self.service.encoder.image, chosen)
        blocks = "".join(views_block(result, shown) for result in answers.values() if result.details)
        return card("How tuning got there", blocks, name="poise-views")

    def _main(self, answers: Results) -> Result:
        calibration = self.service.settings.calibration
        wanted = (calibration.recommended if calibration and self.question.calibrated else "", DEFAULT_METHOD)
        return next((answers[name] for name in wanted if name in answers), list(answers.values())[-1])

    def _job(self, names: tuple[str, ...], *, details: bool = False) -> Job:
        asked = self.question
        return Job(
            labels=self.labels,
            methods=names,
            template=asked.template.strip() or None,
            views=asked.views,
            seed=asked.seed,
            details=details,
            uncalibrated=not self._calibrates(names[0]),
        )

    def _calibrates(self, method: str) -> bool:
        calibration = self.service.settings.calibration
        if calibration is None or not self.question.calibrated:
            return False
        return self.labels == calibration.conditions.labels and method in calibration.methods

    def _basis(self, result: Result) -> Basis:
        calibration = self.service.settings.calibration
        if calibration is None:
            return Basis()
        if result.calibrated is not None:
            return Basis(len(calibration), self.service.settings.coverage or COVERAGE)
        if not self.question.calibrated:
            return Basis(reason="The calibration of this page is switched off.")
        other = self.labels != calibration.conditions.labels
        return Basis(reason=f"The calibration of this page is for other {'labels' if other else 'methods'}.")

    def _call(self, names: tuple[str, ...]) -> Call:
        """Return the call with these methods; if some are calibrated, with those alone."""
        asked, settings = self.question, self.service.settings
        names = self._groups(names)[0]
        job = self.service.plan(self._job(names)).job
        assert job.views is not None
        assert job.seed is not None
        return Call(
            file=self.file,
            labels=self.labels,
            methods=names,
            template=job.template,
            views=job.views,
            seed=job.seed,
            init=settings.init,
            augmix=settings.augmix,
            on_long_label=settings.on_long_label,
            model=settings.model,
            url=asked.url,
            calibrated=not job.uncalibrated,
            coverage=job.coverage,
            max_error=job.max_error,
            switched_off=settings.calibration is not None and job.uncalibrated,
        )


def _waiting(future: Future[Results], doing: str, start: float) -> Iterator[Panels]:
    """Yield progress until the future is done; if the page is closed meanwhile, the future is cancelled."""
    try:
        while not future.done():
            yield {"status": _status(f"{text(doing)} …", seconds=time.monotonic() - start)}
            try:
                future.result(timeout=_TICK)
            except TimeoutError:
                if future.done():  # the deadline's error is a TimeoutError, too
                    raise
    finally:
        future.cancel()


def _status(message: str, *, start: str = "", seconds: float | None = None) -> str:
    """Return the line about progress; a moving bar while something is computed."""
    busy = seconds is not None or bool(start)
    after = f' <span class="seconds">{seconds:.1f} s</span>' if seconds is not None else ""
    before = f"{start}. " if start else ""
    moving = '<div class="moving" aria-hidden="true"></div>' if busy else ""
    return f'<div class="poise-status poise-shown" role="status">{before}{message}{after}{moving}</div>'
