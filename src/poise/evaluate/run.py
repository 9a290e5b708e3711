"""A benchmark run: every method on every image of every dataset and seed, once, even if it is interrupted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from poise.data import ImageSet
from poise.evaluate import same_images
from poise.evaluate import text_features as features
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.engines import Engine, Watch, engines
from poise.evaluate.prepare import PreparedRun, prepare
from poise.evaluate.records import TOP, stores_all
from poise.evaluate.resolve import check_init
from poise.evaluate.sanity import plausibility
from poise.evaluate.storage.header import MODEL
from poise.evaluate.storage.run_folder import RunFolder
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, WorkerSettings
from poise.progress import progress_bar
from poise.text import file_name

log = logging.getLogger(__name__)
_FIRST = 100  # images of a dataset after which its zero-shot accuracy is checked, once
_ROW_BYTES = 200  # upper estimate of a row without its probabilities


@dataclass
class RunSummary:
    """What a run did. Images and errors are counted over the whole run, including earlier attempts."""

    run: str
    folder: Path
    methods: int = 0
    seeds: int = 1
    images: int = 0  #: times seeds
    units: int = 0
    computed: int = 0  #: units of this attempt
    damaged: tuple[str, ...] = ()  #: units whose file was damaged; computed again
    errors: int = 0  #: images that could not be read
    fallbacks: int = 0
    warnings: list[str] = field(default_factory=list)


def run(
    config: RunConfig,
    settings: Settings,
    *,
    check: Callable[[], None] = lambda: None,
    allow_changes: bool = False,
    command: Sequence[str] = (),
    warn: Callable[[str], None] = log.warning,
    quiet: bool = False,
) -> RunSummary:
    """Compute the units of a run that are not finished, and summarise the whole run.

    Args:
        config: what to run.
        settings: where and how.
        check: called between batches; raises to stop the run (see `poise.evaluate.interrupt`).
        allow_changes: resume a run of other versions, another commit or another device.
        command: what the user typed, stored in the ledger for ``resume-info``.
        warn: called with a sentence as soon as results look doubtful.
        quiet: show no progress.
    """
    methods = check_init(config)
    make_engine = engines.get(settings.engine)
    with RunFolder(settings.out, config.run_id) as folder:
        prepared = prepare(config, settings.data, methods, folder.header())
        for problem in prepared.missing.values():
            raise problem
        folder.begin(prepared.header(), allow_changes=allow_changes)
        attempt = _Attempt(folder, prepared, warn, quiet=quiet)
        attempt.check_images(deep=settings.deep)
        stored = (folder.header() or {}).get(MODEL)
        job = WorkerSettings(prepared.config, settings.data, settings.workers, settings.actors, stored)
        attempt.finish(lambda: make_engine(job, prepared.sets, settings.address), check, command, tsne=settings.tsne)
        return attempt.summary()


class _Attempt:
    """One attempt at the unfinished part of a run."""

    def __init__(
        self, folder: RunFolder, prepared: PreparedRun, warn: Callable[[str], None], *, quiet: bool = False
    ) -> None:
        self.folder, self.sets, self.units, self.warn = folder, prepared.sets, prepared.units(), warn
        self.methods, self._quiet = len(prepared.methods), quiet
        state = folder.state(self.units)
        self.damaged = state.damaged
        self.done = [unit for unit in self.units if unit.id in state.finished]
        self.todo = [unit for unit in self.units if unit.id not in state.finished]
        self.warnings: list[str] = []
        self._seen: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        folder.check_space(sum(_bytes(unit, self.sets, prepared.config) for unit in self.todo))

    def check_images(self, *, deep: bool) -> None:
        """Raise an error if an image of a finished unit was replaced, since the run would mix answers for both."""
        if self.todo and self.done:
            same_images.check(self.folder, self.sets, self.done, deep=deep, quiet=self._quiet)

    def finish(
        self, make_engine: Callable[[], Engine], check: Callable[[], None], command: Sequence[str], *, tsne: bool
    ) -> None:
        """Compute the unfinished units, then the text features. No model is loaded if nothing is left to do."""
        missing = self._missing_features() if tsne else {}
        if not self.todo and not missing:
            return
        start = {"event": "start", "command": list(command), "open": len(self.todo), "damaged": list(self.damaged)}
        self.folder.ledger.append(start)
        stamps = same_images.stamps(self.sets, self.todo)  # before an image is read
        engine = make_engine()
        total, finished = (sum(len(unit.items) for unit in units) for units in (self.units, self.done))
        with progress_bar(self.folder.run_id, total, finished, quiet=self._quiet) as progress:
            for done in engine.run(self.todo, Watch(progress=progress, check=check)):
                self._commit(done, stamps[done.unit.id])
        for name, file in missing.items():
            check()
            units = [unit for unit in self.units if unit.dataset == name]
            positions = [position for unit in units if unit.seed == units[0].seed for position in unit.items]
            arrays = engine.text_features(name, features.sample_positions(positions), units[0].seed)
            self.folder.commit_file(file, features.pack(arrays))

    def _commit(self, done: Finished, stamp: str | None) -> None:
        self.folder.identify(done.model_fingerprint)
        facts: dict[str, Any] = {"images": done.images, "errors": done.errors, "fallbacks": done.fallbacks}
        if stamp is not None:
            facts["files"] = stamp
        self.folder.commit(done.unit, done.content, **facts, seconds=round(done.seconds, 3))
        self._check_accuracy(done)

    def _missing_features(self) -> dict[str, str]:
        """Return the file of text features of each dataset that has none yet."""
        files = {name: f"features/{file_name(images.name)}.npz" for name, images in self.sets.items()}
        return {name: file for name, file in files.items() if not self.folder.has_file(file)}

    def summary(self) -> RunSummary:
        """Summarise the run as it is now."""
        finished = self.folder.ledger.finished()
        counts = {
            key: sum(finished[unit.id].get(key, 0) for unit in self.units) for key in ("images", "errors", "fallbacks")
        }
        return RunSummary(
            self.folder.run_id,
            self.folder.path,
            self.methods,
            len({unit.seed for unit in self.units}),
            units=len(self.units),
            computed=len(self.todo),
            damaged=self.damaged,
            warnings=self.warnings,
            **counts,
        )

    def _check_accuracy(self, done: Finished) -> None:
        """Warn, once, if so many of a dataset's first images are wrong that its labels may be out of order."""
        name = done.unit.dataset
        before = self._seen[name]
        self._seen[name] += done.images - done.errors
        self._hits[name] += done.init_hits
        if before < _FIRST <= self._seen[name]:
            doubt = plausibility(self.sets[name], self._hits[name] / self._seen[name], self._seen[name])
            if doubt:
                self.warn(doubt)
                self.warnings.append(doubt)


def _bytes(unit: Unit, sets: Mapping[str, ImageSet], config: RunConfig) -> int:
    """Return an upper estimate of the size of a unit's file."""
    classes = len(sets[unit.dataset].classes)
    probs = 4 * classes if stores_all(classes, config.calibrate > 0) else 8 * TOP
    return len(unit.items) * len(config.methods) * (_ROW_BYTES + probs)
