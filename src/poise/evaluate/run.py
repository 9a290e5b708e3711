"""A benchmark run: every method on every image of every dataset and seed, once, however often it is interrupted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poise.data import ImageSet, plausibility
from poise.errors import InvalidOption
from poise.evaluate import features
from poise.evaluate.config import RunConfig, Settings, adopt, slug
from poise.evaluate.engines import Engine, Watch, engines
from poise.evaluate.header import header
from poise.evaluate.ledger import write_whole
from poise.evaluate.progress import progress_bar
from poise.evaluate.records import FULL_PROBS_UP_TO, TOP
from poise.evaluate.store import RunFolder
from poise.evaluate.units import Unit, choose, plan
from poise.evaluate.worker import Finished, Job, check_available, make_methods, open_set, resolve

log = logging.getLogger(__name__)
_FIRST = 100  # images after which a dataset's zero-shot accuracy is looked at, once
_ROW_BYTES = 160  # of a row without its probabilities, measured generously


@dataclass
class Summary:
    """What a run did, counted over all of its images, those of earlier attempts included."""

    run: str
    folder: Path
    images: int = 0
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
) -> Summary:
    """Do what is open of a run, and count all of it.

    Args:
        config: what is run.
        settings: where and how.
        check: called between batches; raises to stop the run (see `poise.evaluate.interrupt`).
        allow_changes: go on with a run that was begun by other versions, on another device or commit.
        command: what the user typed, noted in the ledger for ``resume-info``.
    """
    check_available(config)
    with RunFolder(settings.out, config.run_id) as folder:
        stored = folder.header()
        resolved = resolve(adopt(config, stored["config"]) if stored else config)
        sets = _open_sets(resolved, settings.data)
        chosen = {name: _choose(images, resolved.limit) for name, images in sets.items()}
        folder.settle(header(resolved, make_methods(resolved), sets, chosen), allow_changes=allow_changes)
        units = [
            unit
            for name in sets
            for unit in plan(name, slug(sets[name].name), chosen[name], resolved.seeds, resolved.chunk)
        ]
        summary = Summary(run=config.run_id, folder=folder.path, units=len(units))
        _finish(folder, Job(resolved, settings.data, settings.workers), settings, sets, units, summary, check, command)
        return summary


def _finish(
    folder: RunFolder,
    job: Job,
    settings: Settings,
    sets: Mapping[str, ImageSet],
    units: Sequence[Unit],
    summary: Summary,
    check: Callable[[], None],
    command: Sequence[str],
) -> None:
    """Do the open units, then the text features; nothing is loaded where nothing is open."""
    state = folder.state(units)
    summary.damaged = state.damaged
    todo = [unit for unit in units if unit.id not in state.finished]
    lacking = [name for name in sets if not _features_path(folder, sets[name]).is_file()]
    if todo or lacking:
        folder.check_space(sum(_bytes(unit, sets, len(job.config.methods)) for unit in todo))
        folder.ledger.append({"event": "start", "command": list(command), "open": len(todo), "damaged": state.damaged})
        engine = engines.get(settings.engine)(job, sets, settings.address)
        _do(engine, folder, todo, units, sets, summary, check)
        for name in lacking:
            check()
            _write_features(engine, folder, sets[name], units, name)
    _count(folder, units, summary)


def _do(
    engine: Engine,
    folder: RunFolder,
    todo: Sequence[Unit],
    units: Sequence[Unit],
    sets: Mapping[str, ImageSet],
    summary: Summary,
    check: Callable[[], None],
) -> None:
    """Have the units done and make each one final as it comes."""
    total, open_images = (sum(len(unit.items) for unit in some) for some in (units, todo))
    seen: Counter[str] = Counter()
    hits: Counter[str] = Counter()
    with progress_bar(summary.run, total, total - open_images) as progress:
        for done in engine.run(todo, Watch(progress=progress, check=check)):
            facts = {"images": done.images, "errors": done.errors, "fallbacks": done.fallbacks}
            folder.commit(done.unit, done.content, **facts, seconds=round(done.seconds, 3))
            summary.computed += 1
            summary.warnings += _doubts(done, sets, seen, hits)


def _doubts(done: Finished, sets: Mapping[str, ImageSet], seen: Counter[str], hits: Counter[str]) -> list[str]:
    """A warning, once, when so many of a dataset's first images are wrong that its labels may be out of order."""
    name = done.unit.dataset
    before = seen[name]
    seen[name] += done.images - done.errors
    hits[name] += done.start_hits
    if not before < _FIRST <= seen[name]:
        return []
    doubt = plausibility(sets[name], hits[name] / seen[name], seen[name])
    if doubt:
        log.warning("%s", doubt)
    return [doubt] if doubt else []


def _count(folder: RunFolder, units: Sequence[Unit], summary: Summary) -> None:
    lines = folder.ledger.finished()
    summary.images = sum(int(lines[unit.id]["images"]) for unit in units)
    summary.errors = sum(int(lines[unit.id]["errors"]) for unit in units)
    summary.fallbacks = sum(int(lines[unit.id]["fallbacks"]) for unit in units)


def _write_features(engine: Engine, folder: RunFolder, images: ImageSet, units: Sequence[Unit], name: str) -> None:
    own = [unit for unit in units if unit.dataset == name]
    positions = [position for unit in own if unit.seed == own[0].seed for position in unit.items]
    arrays = engine.text_features(name, features.sample_positions(positions), own[0].seed)
    write_whole(_features_path(folder, images), features.pack(arrays))


def _features_path(folder: RunFolder, images: ImageSet) -> Path:
    return folder.path / "features" / f"{slug(images.name)}.npz"


def _open_sets(config: RunConfig, root: str) -> dict[str, ImageSet]:
    """The datasets by the names they were asked for; their own names, which the records carry, must differ."""
    sets = {name: open_set(name, root, config) for name in config.datasets}
    own = Counter(images.name for images in sets.values())
    twice = [name for name, count in own.items() if count > 1]
    if twice:
        raise InvalidOption(f"Several datasets are called '{twice[0]}'.", hint="Run them apart, each with a --name.")
    return sets


def _choose(images: ImageSet, limit: int) -> list[int]:
    return choose([item.id for item in images.items], [item.label for item in images.items], limit)


def _bytes(unit: Unit, sets: Mapping[str, ImageSet], methods: int) -> int:
    """An upper estimate of a unit's file."""
    classes = len(sets[unit.dataset].classes)
    probs = 4 * classes if classes <= FULL_PROBS_UP_TO else 8 * TOP
    return len(unit.items) * methods * (_ROW_BYTES + probs)
