"""Runs a job over shards, once, even if it is interrupted: here or on a Ray cluster, with the same parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from poise.data.sources import Shard
from poise.errors import InvalidOptionError, RunConflictError
from poise.evaluate.storage.run_folder import differences
from poise.files import hash_names, only_writer
from poise.filesystems import is_remote
from poise.jobs.done import Done, Summary
from poise.jobs.workers import Worker
from poise.parts import part_name, read_manifest, receipts, write_manifest

Progress = Callable[[int], None]


class Job(Protocol):
    """What is done with each shard; picklable."""

    @property
    def out(self) -> str:
        """The folder of the parts."""

    def worker(self) -> Worker:
        """Return the worker of a process."""


@dataclass(frozen=True)
class Engine:
    """Where a job runs: in this process, or on a Ray cluster."""

    name: str = "local"
    address: str = ""
    actors: int = 0
    gpu: bool | None = None


def begin(out: str, manifest: Mapping[str, Any], shards: Sequence[Shard], *, resume: bool) -> dict[int, Done]:
    """Write the manifest of a new folder, or return what an earlier attempt finished.

    Raises:
        RunConflictError: The folder has parts and ``resume`` is False, or they were made otherwise.
    """
    names = [shard.name for shard in shards]
    ours = {**manifest, "shards": len(names), "shards_hash": hash_names(names)}
    theirs = read_manifest(out)
    if theirs is None:
        write_manifest(out, ours)
        return {}
    if not resume:
        raise RunConflictError(
            f"'{out}' has the parts of an earlier job.", hint="Add --resume to continue it, or give another --out."
        )
    known = {key: value for key, value in theirs.items() if key in ours}
    if changed := differences(_comparable(ours), _comparable(known)):
        raise RunConflictError(
            f"The parts in '{out}' were made with other settings (stored -> now): {'; '.join(changed)}.",
            hint="Repeat the first command, or give another --out.",
        )
    numbers = {part_name(number): number for number in range(len(names))}
    return {
        numbers[name]: Done.of(numbers[name], receipt) for name, receipt in receipts(out).items() if name in numbers
    }


def _comparable(manifest: Mapping[str, Any]) -> dict[str, Any]:
    import json

    return dict(json.loads(json.dumps(manifest, default=str)))


def run(
    job: Job,
    shards: Sequence[Shard],
    engine: Engine,
    *,
    finished: Mapping[int, Done] = {},
    worker: Worker | None = None,
    progress: Progress = lambda images: None,
    watch: Callable[[Done], None] = lambda done: None,
) -> Summary:
    """Do what is left of a job, and summarise all of it.

    Args:
        job: what is done with each shard.
        shards: all shards of the job.
        engine: where it runs.
        finished: what earlier attempts have done, by the number of the shard.
        worker: one that this process has made already, for the local engine.
        progress: called with numbers of images.
        watch: called after each shard.
    """
    summary = Summary()
    models = {done.fingerprint for done in finished.values()}
    for done in finished.values():
        summary.add(done)
    tasks = [(number, shard) for number, shard in enumerate(shards) if number not in finished]
    with _alone(job.out):
        for done in _run(job, tasks, engine, worker, progress):
            if not done.problem and len(models | {done.fingerprint}) > 1:
                others = ", ".join(sorted(map(str, models)))
                raise InvalidOptionError(
                    f"The shard '{done.shard}' was computed by a model with the fingerprint {done.fingerprint}, others "
                    f"by {others}.",
                    hint="All machines need the same weights. Give another --out, and begin again.",
                )
            models |= set() if done.problem else {done.fingerprint}
            summary.add(done)
            watch(done)
    return summary


def _run(
    job: Job, tasks: Sequence[tuple[int, Shard]], engine: Engine, worker: Worker | None, progress: Progress
) -> Iterator[Done]:
    if not tasks:
        return
    if engine.name != "ray":
        yield from (worker or job.worker()).run(tasks, progress)
        return
    from poise.cluster.stream import Stream

    stream = Stream(partial(make_worker, job), address=engine.address, actors=engine.actors, gpu=engine.gpu)
    for _, done in stream.run(tasks, name=lambda task: f"the shard {task[1].name}"):
        progress(done.images)
        yield done


def make_worker(job: Job, threads: int) -> Worker:
    """Return the worker of an actor, which has a number of threads to itself."""
    import torch

    torch.set_num_threads(threads)
    return job.worker()


@contextlib.contextmanager
def _alone(out: str) -> Iterator[None]:
    """Keep other processes of this machine from writing the same folder."""
    if is_remote(out):
        yield
        return
    from pathlib import Path

    with only_writer(Path(out) / ".lock"):
        yield
