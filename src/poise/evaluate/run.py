"""A benchmark run: every method on every image of every dataset and seed, once, however often it is interrupted."""

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
from poise.evaluate.progress import progress_bar
from poise.evaluate.records import FULL_PROBS_UP_TO, TOP
from poise.evaluate.resolve import check_init, make_methods, open_set, resolve
from poise.evaluate.sanity import plausibility
from poise.evaluate.storage.header import header
from poise.evaluate.storage.run_folder import RunFolder
from poise.evaluate.units import Plan, Unit, choose
from poise.evaluate.worker import Finished, Job
from poise.storage import slug, write_atomic

log = logging.getLogger(__name__)
_FIRST = 100  # images after which a dataset's zero-shot accuracy is looked at, once
_ROW_BYTES = 160  # of a row without its probabilities, measured generously


@dataclass
class RunSummary:
    """What a run did. Images and errors are counted over the whole run, earlier attempts included."""

    run: str
    folder: Path
    images: int = 0  # times seeds
    units: int = 0
    computed: int = 0  # units of this attempt
    damaged: tuple[str, ...] = ()  # units whose file was not as written; computed again
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
) -> RunSummary:
    """Do what is open of a run, and count all of it.

    Args:
        config: what is run.
        settings: where and how.
        check: called between batches; raises to stop the run (see `poise.evaluate.interrupt`).
        allow_changes: go on with a run that was begun by other versions, on another device or commit.
        command: what the user typed, noted in the ledger for ``resume-info``.
        warn: told at once of anything that makes the results doubtful.
    """
    check_init(config)
    make_engine = engines.get(settings.engine)
    with RunFolder(settings.out, config.run_id) as folder:
        resolved = _resolved(config, folder.header())
        sets = _open_sets(resolved, settings.data)
        chosen = {name: _choose(images, resolved.limit) for name, images in sets.items()}
        head = header(resolved, make_methods(resolved), sets, chosen)
        folder.begin(head, allow_changes=allow_changes)
        plan = Plan.of(head)
        units = [
            unit
            for name, images in sets.items()
            for unit in plan.units(name, slug(images.name), chosen[name], [item.id for item in images.items])
        ]
        attempt = _Attempt(folder, sets, units, len(resolved.methods))
        attempt.warn = warn
        job = Job(resolved, settings.data, settings.workers, settings.actors)
        attempt.finish(lambda: make_engine(job, sets, settings.address), check, command)
        return attempt.summary()


def _resolved(config: RunConfig, stored: Mapping[str, Any] | None) -> RunConfig:
    """The configuration on this machine; a run that was begun keeps the batch size that was chosen for it."""
    begun = stored["config"] if stored else {}
    resolved = resolve(replace(config, batch_size=config.batch_size or int(begun.get("batch_size", 0))))
    # Resolving changes the hash; header and rows carry the folder's name all the same.
    return replace(resolved, name=str(stored["run"]) if stored else config.run_id)


class _Attempt:
    """One go at the open part of a run."""

    def __init__(self, folder: RunFolder, sets: Mapping[str, ImageSet], units: Sequence[Unit], methods: int) -> None:
        self.folder, self.sets, self.units = folder, sets, units
        state = folder.state(units)
        self.damaged = state.damaged
        self.todo = [unit for unit in units if unit.id not in state.finished]
        self.featureless = [name for name in sets if not self._features_file(name).is_file()]
        self.warn: Callable[[str], None] = log.warning
        self.warnings: list[str] = []
        self._seen: Counter[str] = Counter()
        self._hits: Counter[str] = Counter()
        folder.check_space(sum(_bytes(unit, sets, methods) for unit in self.todo))

    def finish(self, make_engine: Callable[[], Engine], check: Callable[[], None], command: Sequence[str]) -> None:
        """Do the open units, then the text features. No model is loaded where nothing is open."""
        if not self.todo and not self.featureless:
            return
        start = {"event": "start", "command": list(command), "open": len(self.todo), "damaged": list(self.damaged)}
        self.folder.ledger.append(start)
        engine = make_engine()
        total, to_do = (sum(len(unit.items) for unit in some) for some in (self.units, self.todo))
        with progress_bar(self.folder.run_id, total, total - to_do) as progress:
            for done in engine.run(self.todo, Watch(progress=progress, check=check)):
                self._commit(done)
        for name in self.featureless:
            check()
            self._write_features(engine, name)

    def summary(self) -> RunSummary:
        """The run as it is now."""
        lines = [self.folder.ledger.finished()[unit.id] for unit in self.units]
        return RunSummary(
            run=self.folder.run_id,
            folder=self.folder.path,
            images=sum(int(line["images"]) for line in lines),
            units=len(self.units),
            computed=len(self.todo),
            damaged=self.damaged,
            errors=sum(int(line["errors"]) for line in lines),
            fallbacks=sum(int(line["fallbacks"]) for line in lines),
            warnings=self.warnings,
        )

    def _commit(self, done: Finished) -> None:
        facts = {"images": done.images, "errors": done.errors, "fallbacks": done.fallbacks}
        self.folder.commit(done.unit, done.content, **facts, seconds=round(done.seconds, 3))
        self._doubt(done)

    def _doubt(self, done: Finished) -> None:
        """Warn, once, when so many of a dataset's first images are wrong that its labels may be out of order."""
        name = done.unit.dataset
        before = self._seen[name]
        self._seen[name] += done.images - done.errors
        self._hits[name] += done.init_hits
        if before < _FIRST <= self._seen[name]:
            doubt = plausibility(self.sets[name], self._hits[name] / self._seen[name], self._seen[name])
            if doubt:
                self.warn(doubt)
                self.warnings.append(doubt)

    def _write_features(self, engine: Engine, name: str) -> None:
        own = [unit for unit in self.units if unit.dataset == name]
        positions = [position for unit in own if unit.seed == own[0].seed for position in unit.items]
        arrays = engine.text_features(name, features.sample_positions(positions), own[0].seed)
        write_atomic(self._features_file(name), features.pack(arrays))

    def _features_file(self, name: str) -> Path:
        return self.folder.path / "features" / f"{slug(self.sets[name].name)}.npz"


def _open_sets(config: RunConfig, root: str) -> dict[str, ImageSet]:
    """The datasets by the names they were asked for; their own names, which the records carry, must differ."""
    sets = {name: open_set(name, root, config) for name in config.datasets}
    own = Counter(images.name for images in sets.values())
    twice = [name for name, count in own.items() if count > 1]
    if twice:
        raise InvalidOptionError(
            f"Several datasets are called '{twice[0]}'.", hint="Run them apart, each with a --name."
        )
    return sets


def _choose(images: ImageSet, limit: int) -> list[int]:
    return choose([item.id for item in images.items], [item.label for item in images.items], limit)


def _bytes(unit: Unit, sets: Mapping[str, ImageSet], methods: int) -> int:
    """An upper estimate of a unit's file."""
    classes = len(sets[unit.dataset].classes)
    probs = 4 * classes if classes <= FULL_PROBS_UP_TO else 8 * TOP
    return len(unit.items) * methods * (_ROW_BYTES + probs)
