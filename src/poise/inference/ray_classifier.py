"""Many pictures classified by processes on a Ray cluster: the rows of a local `Classifier`, in the same order."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from poise.cluster.connection import is_gpu
from poise.cluster.pool import Pool
from poise.errors import PoiseError
from poise.images import LoadedImage, read_image
from poise.inference.classifier import BATCH_SIZES, Answers, Classifier, check_counts, read_or_fail
from poise.inference.results import Failure

_LARGEST_SENT = 64 * 2**20  # bytes of a file that is sent as it is

Outcome = Answers | Failure


@dataclass(frozen=True)
class SentFile:
    """A picture file on its way to another machine, which need not see the folder it is in."""

    name: str
    content: bytes


class ShareClassifier:
    """A `Classifier` in a process of its own, loaded once, which gets its pictures share by share."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self._classifier = Classifier(**options)

    def work(self, share: Sequence[SentFile | LoadedImage | Failure], details: bool) -> list[Outcome]:
        """One outcome per picture."""
        return list(self._classifier.each(map(_receive, share), details=details))


class ClusterClassifier:
    """`Classifier` with its work spread over a cluster; ``options`` are the arguments of the `Classifier`.

    The files are read here and travel as bytes. A share is one batch, cut where a local run cuts it.
    """

    def __init__(self, options: dict[str, Any], *, address: str = "", actors: int = 0) -> None:
        check_counts(options.get("views", 1), options.get("batch_size"))  # before any process is started
        device = str(options.get("device", "auto"))
        wanted = None if device == "auto" else is_gpu(device)
        self._pool = Pool(partial(ShareClassifier, options), address=address, actors=actors, gpu=wanted)
        kind = "cuda" if self._pool.on_gpu else "cpu"
        self.batch_size = options.get("batch_size") or BATCH_SIZES[kind]

    def each(self, paths: Sequence[Path], *, details: bool = False) -> Iterator[Outcome]:
        """One outcome per picture, in order. If the work has to stop, what is finished still comes before the error."""
        width = self.batch_size
        shares = [tuple(paths[first : first + width]) for first in range(0, len(paths), width)]
        answers = self._pool.run(
            list(enumerate(shares)),
            arguments=lambda share: ([_send(path) for path in share[1]], details),
            name=lambda share: f"the pictures '{share[1][0]}' to '{share[1][-1]}'",
        )
        yield from _in_order((place, outcomes) for (place, _), outcomes in answers)


def _in_order(answers: Iterator[tuple[int, list[Outcome]]]) -> Iterator[Outcome]:
    early: dict[int, list[Outcome]] = {}
    following = 0
    try:
        for place, outcomes in answers:
            early[place] = outcomes
            while following in early:
                yield from early.pop(following)
                following += 1
    except (PoiseError, KeyboardInterrupt):
        for place in sorted(early):
            yield from early[place]
        raise


def _send(path: Path) -> SentFile | LoadedImage | Failure:
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= _LARGEST_SENT:
            return SentFile(str(path), path.read_bytes())
    except (OSError, ValueError):
        pass
    return read_or_fail(path)  # judged here: it isn't there, is no file, or is so large that its pixels travel instead


def _receive(item: SentFile | LoadedImage | Failure) -> LoadedImage | Failure:
    if not isinstance(item, SentFile):
        return item
    try:
        return read_image(item.content, name=item.name)
    except PoiseError as error:
        return Failure(item.name, error.code, str(error))
