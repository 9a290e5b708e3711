"""A benchmark run: every method on every image of every dataset and seed, once, even if it is interrupted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from poise.data import ImageSet
from poise.errors import InvalidOptionError
from poise.evaluate import text_features as features
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.engines import Engine, Watch, engines
from poise.evaluate.held_out import remaining
from poise.evaluate.records import TOP, stores_all
from poise.evaluate.resolve import check_init, make_methods, open_set, resolve
from poise.evaluate.same_images import check_images
from poise.evaluate.sanity import plausibility
from poise.evaluate.storage.header import MODEL, header
from poise.evaluate.storage.run_folder import RunFolder
from poise.evaluate.units import Plan, Unit, choose
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
    images: int = 0  # times seeds
    units: int = 0
    computed: int = 0  # units of this attempt
    damaged: tuple[str, ...] = ()  # units whose file was damaged; computed again
    errors: int = 0  # images that could not be read
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
    check_init(config)
    make_engine = engines.get(settings.engine)
    with RunFolder(settings.out, config.run_id) as folder:
        resolved = _resolved(config, folder.header())
        sets = _open_sets(resolved, settings.data)
        chosen = {
            name: choose([item.id for item in images.items], [item.label for item in images.items], resolved.limit)
            for name, images in sets.items()
        }
        for name, positions in chosen.items():
            remaining(resolved, name, len(positions))
        head = header(resolved, make_methods(resolved), sets, chosen)
        folder.begin(head, allow_changes=allow_changes)
        plan = Plan.of(head)
        units = [
            unit
            for name, images in sets.items()
            for unit in plan.units(name, file_name(images.name), chosen[name], [item.id for item in images.items])
        ]
        attempt = _Attempt(folder, sets, units, resolved, warn)
        stored = (folder.header() or {}).get(MODEL)
        job = WorkerSettings(resolved, settings.data, settings.workers, settings.actors, stored)
        attempt.finish(lambda: make_engine(job, sets, settings.address), check, command, quiet)
        return attempt.summary()


def _resolved(config: RunConfig, stored: Mapping[str, Any] | None) -> RunConfig:
    """Return the configuration on this machine; a run that is resumed keeps its stored batch size."""
    batch_size = config.batch_size or int((stored or {"config": {}})["config"].get("batch_size", 0))
    # Resolving changes the hash; header and rows have the folder's name all the same.
    return replace(
        resolve(replace(config, batch_size=batch_size)), name=str(stored["run"]) if stored else config.run_id
    )


class _Attempt:
    """One attempt at the unfinished part of a run."""

    def __init__(
        self,
        folder: RunFolder,
        sets: Mapping[str, ImageSet],
        units: Sequence[Unit],
        config: RunConfig,
        warn: Callable[[str], None],
    ) -> None:
        self.folder, self.sets, self.units, self.warn = folder, sets, units, warn
        self.methods = len(config.methods)
        state = folder.state(units)
        self.damaged = state.damaged
        self.todo = [unit for unit in units if unit.id not in state.finished]
        if self.todo and state.finished:
            check_images(folder, sets, state.finished)
        self.warnings: list[str] = []
        self._seen: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        folder.check_space(sum(_bytes(unit, sets, config) for unit in self.todo))

    def finish(
        self, make_engine: Callable[[], Engine], check: Callable[[], None], command: Sequence[str], quiet: bool
    ) -> None:
        """Compute the unfinished units, then the text features. No model is loaded if nothing is left to do."""
        files = {name: f"features/{file_name(images.name)}.npz" for name, images in self.sets.items()}
        missing = {name: file for name, file in files.items() if not self.folder.has_file(file)}
        if not self.todo and not missing:
            return
        start = {"event": "start", "command": list(command), "open": len(self.todo), "damaged": list(self.damaged)}
        self.folder.ledger.append(start)
        engine = make_engine()
        total, remaining = (sum(len(unit.items) for unit in units) for units in (self.units, self.todo))
        with progress_bar(self.folder.run_id, total, total - remaining, quiet=quiet) as progress:
            for done in engine.run(self.todo, Watch(progress=progress, check=check)):
                self.folder.identify(done.model_fingerprint)
                facts = {"images": done.images, "errors": done.errors, "fallbacks": done.fallbacks}
                self.folder.commit(done.unit, done.content, **facts, seconds=round(done.seconds, 3))
                self._check_accuracy(done)
        for name, file in missing.items():
            check()
            units = [unit for unit in self.units if unit.dataset == name]
            positions = [position for unit in units if unit.seed == units[0].seed for position in unit.items]
            arrays = engine.text_features(name, features.sample_positions(positions), units[0].seed)
            self.folder.commit_file(file, features.pack(arrays))

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


def _open_sets(config: RunConfig, root: str) -> dict[str, ImageSet]:
    """Open the datasets by their configured names; the names in the records must differ as well."""
    sets = {name: open_set(name, root, config) for name in config.datasets}
    (name, count), *_ = Counter(images.name for images in sets.values()).most_common()
    if count > 1:
        raise InvalidOptionError(f"Several datasets are called '{name}'.", hint="Run each on its own, with a --name.")
    return sets


def _bytes(unit: Unit, sets: Mapping[str, ImageSet], config: RunConfig) -> int:
    """Return an upper estimate of the size of a unit's file."""
    classes = len(sets[unit.dataset].classes)
    probs = 4 * classes if stores_all(classes, config.calibrate > 0) else 8 * TOP
    return len(unit.items) * len(config.methods) * (_ROW_BYTES + probs)
