"""From what was typed into the page to its panels, through the server's queue."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from poise import methods
from poise.calibration import Calibration
from poise.defaults import DEFAULT_METHOD
from poise.demo.advice import Basis, advice_card, label_advice
from poise.demo.bars import answer_card, label_card
from poise.demo.calls import Call, calls_card
from poise.demo.example_rows import find_example, remark
from poise.demo.kept_views import thumbnails, views_block
from poise.demo.markup import alert, card, status, text
from poise.errors import InvalidLabelsError, PoiseError, UnreadableImageError
from poise.options import Options
from poise.prompts.labels import BAR, split_groups, split_paths, split_written
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
    """Return labels that are separated by commas or lines, with "|" between groups."""
    text = re.sub(r"\s*\|\s*", BAR, written).replace("\n", ",")
    labels = tuple(label for label in split_written(text) if label)
    if not labels:
        raise InvalidLabelsError("There are no labels.", hint="Write some, such as: cat, dog, rabbit.")
    return labels


def answer(service: Service, question: Question) -> Iterator[Panels]:
    """Yield the panels that change: zero-shot as soon as it is there, then progress, then the tuned answers."""
    try:
        yield from _Answering(service, question).steps()
    except PoiseError as error:
        name = question.upload.name if question.upload else ""
        message = error.message.replace("The image", f"'{name}'", 1)  # what the queue calls an image
        hint = re.sub(r", or let it be cut off .*(?=\.$)", "", error.hint)  # who started the page may allow that
        yield {**dict.fromkeys(PANELS, ""), "status": alert(message, hint)}
    except Exception:
        _log.exception("the page could not answer")
        said = alert("The page could not answer.", "The terminal in which it was started says why.")
        yield {**dict.fromkeys(PANELS, ""), "status": said}


class _Answering:
    def __init__(self, service: Service, question: Question) -> None:
        self.service, self.question = service, question
        names, groups = split_groups(split_labels(question.labels))
        names, paths = split_paths(names)
        self.labels, self.groups, self.parents = tuple(names), tuple(groups), tuple(paths)
        if question.upload is None:
            raise UnreadableImageError("There is no image.", hint="Drop one, paste one, or choose an example.")
        self.image, self.file = question.upload.path.read_bytes(), question.upload.name
        settings, self.reason = service.settings, ""
        self.calibration = settings.calibration if question.calibrated else None
        if settings.calibration is not None and self.calibration is None:
            self.reason = "The calibration of this page is switched off."
        elif self.calibration is not None:
            made_for = self.calibration.conditions
            if (self.labels, self.groups, self.parents) != (made_for.labels, made_for.groups, made_for.parents):
                self.reason, self.calibration = "The calibration of this page is for other labels.", None
        self.methods = tuple(name for name in methods.every_name() if name in (ZERO, *question.methods))
        if settings.independent:
            self.methods = (ZERO,)
        self.left_out: tuple[str, ...] = ()
        if isinstance(self.calibration, Calibration):  # calibrated and raw probabilities can't be compared
            known = self.calibration.methods
            self.left_out = tuple(name for name in self.methods if name not in known)
            self.methods = tuple(name for name in self.methods if name in known) or (self.calibration.recommended,)
        self.tuned = tuple(name for name in self.methods if name != ZERO)

    def steps(self) -> Iterator[Panels]:
        start = time.monotonic()
        while self.service.status == "starting":
            yield {"status": status("Loading the model …", busy=True, seconds=time.monotonic() - start)}
            time.sleep(_TICK)
        start = time.monotonic()
        answers: Results = {}
        seconds: dict[str, float] = {}
        if ZERO in self.methods:
            future = self.service.submit(self.image, self._job((ZERO,)))
            yield from _waiting(future, "Asking zero-shot", start)
            answers |= future.result()
            seconds[ZERO] = time.monotonic() - start
            yield self._panels(answers, self.tuned, seconds)
        if self.tuned:
            job = self._job(self.tuned, details=True)
            future = self.service.submit(self.image, job)
            yield from _waiting(future, f"Tuning on views of the image: {', '.join(self.tuned)}", start)
            answers |= future.result()
            seconds[", ".join(self.tuned)] = time.monotonic() - start
            yield self._panels(answers, (), seconds) | {"views": self._views(answers, job)}

    def _panels(self, answers: Results, waiting: tuple[str, ...], seconds: dict[str, float]) -> Panels:
        results = list(answers.values())
        main = self._main(answers)
        example = find_example(self.image, self.labels)
        note = f'<p class="lesson">{text(remark(example, main))}</p>' if example and not waiting else ""
        if self.left_out:
            note += (
                f'<p class="say">Not shown: {text(", ".join(self.left_out))}. The calibration has no such method, and '
                "calibrated probabilities can't be compared with others. Switch it off in the options to compare "
                "methods without it.</p>"
            )
        done = "; ".join(f"{text(name)} after {number:.2f} s" for name, number in seconds.items())
        return {
            "status": status(f"{done}. Tuning {text(', '.join(waiting))} …", busy=True) if waiting else status(done),
            **self._answer(results, main, waiting, note),
            "views": "",
            "calls": calls_card(self._call()),
        }

    def _answer(self, results: list[Result], main: Result, waiting: tuple[str, ...], note: str) -> Panels:
        if self.service.settings.independent:
            return {"answer": label_card(main), "advice": label_advice(main)}
        return {
            "answer": answer_card(results, main, waiting, note=note),
            "advice": advice_card(main, self._basis()),
        }

    def _views(self, answers: Results, job: Job) -> str:
        results = [part for result in answers.values() for part in (result.groups or {"": result}).values()]
        details = [result.details for result in results if result.details]
        chosen = [at for each in details for at in each.selected_views]
        recipe = self.service.classifier(self.service.plan(job)).recipe
        shown = thumbnails(self.image, recipe, self.service.encoder, chosen)
        several = any(result.groups for result in answers.values())
        blocks = "".join(
            views_block(result, shown, labels=", ".join(result.probabilities) if several else "")
            for result in results
            if result.details
        )
        return card("How tuning got there", blocks, name="poise-views")

    def _main(self, answers: Results) -> Result:
        wanted = (self.calibration.recommended if self.calibration else "", DEFAULT_METHOD)
        return next((answers[name] for name in wanted if name in answers), list(answers.values())[-1])

    def _job(self, names: tuple[str, ...], *, details: bool = False) -> Job:
        asked = self.question
        return Job(
            labels=self.labels,
            parents=self.parents,
            groups=self.groups,
            methods=names,
            template=asked.template.strip() or None,
            views=asked.views,
            seed=asked.seed,
            details=details,
            uncalibrated=self.calibration is None,
        )

    def _basis(self) -> Basis:
        if self.calibration is None:
            return Basis(reason=self.reason)
        return Basis(len(self.calibration), self.service.settings.coverage or COVERAGE)

    def _call(self) -> Call:
        """Return the call that gives all numbers of the page."""
        asked, settings = self.question, self.service.settings
        planned = self.service.plan(self._job(self.methods))
        return Call(
            file=self.file,
            options=replace(planned.options, device=Options.device, dtype=Options.dtype, batch_size=None),
            url=asked.url,
            calibrated=planned.calibrated,
            switched_off=settings.calibration is not None and not planned.calibrated,
        )


def _waiting(future: Future[Results], doing: str, start: float) -> Iterator[Panels]:
    """Yield progress until the future is done; if the page is closed meanwhile, the future is cancelled."""
    try:
        while not future.done():
            yield {"status": status(f"{text(doing)} …", busy=True, seconds=time.monotonic() - start)}
            try:
                future.result(timeout=_TICK)
            except TimeoutError:
                if future.done():  # the deadline's error is a TimeoutError, too
                    raise
    finally:
        future.cancel()
