"""Many images classified by processes on a Ray cluster: the rows of a local `Classifier`, in the same order."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from poise.cluster.connection import is_gpu
from poise.cluster.pool import Pool
from poise.errors import PoiseError
from poise.images import LoadedImage, read_image
from poise.inference.classifier import Answers, Classifier, check_counts, find_methods
from poise.inference.limits import default_batch_size
from poise.inference.results import Failure
from poise.loading.sources import NamedBytes
from poise.prompts import check_labels

_LARGEST_SENT = 64 * 2**20  # bytes of a file that is sent as it is
_SHARE_FOR_GPU = 32  # images: which GPUs the workers have, only they know

Outcome = Answers | Failure
Sent = NamedBytes | LoadedImage | Failure


class ShareClassifier:
    """A `Classifier` in a process of its own, loaded once, which gets its images share by share."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self._classifier: Classifier[Any] = Classifier(**options)

    def work(self, share: Sequence[Sent], details: bool) -> list[Outcome]:
        """One outcome per image."""
        return list(self._classifier.each(share, details=details))


class ClusterClassifier:
    """`Classifier` with its work spread over a cluster; ``options`` are the arguments of the `Classifier`.

    The files are read here and travel as bytes. On CPUs a share is one batch, cut where a local run cuts it.
    """

    def __init__(self, options: dict[str, Any], *, address: str = "", actors: int = 0) -> None:
        views = options.get("views", 1)
        check_counts(views, options.get("batch_size"))  # before any process is started
        check_labels(options["labels"])
        find_methods(options["method"])
        device = str(options.get("device", "auto"))
        wanted = None if device == "auto" else is_gpu(device)
        self._pool = Pool(partial(ShareClassifier, options), address=address, actors=actors, gpu=wanted)
        share = _SHARE_FOR_GPU if self._pool.on_gpu else default_batch_size(torch.device("cpu"), views)
        self.share = options.get("batch_size") or share

    def each(self, paths: Sequence[Path], *, details: bool = False) -> Iterator[Outcome]:
        """One outcome per image, in order. If the work has to stop, what is finished still comes before the error."""
        shares = [tuple(paths[first : first + self.share]) for first in range(0, len(paths), self.share)]
        answers = self._pool.run(
            list(enumerate(shares)),
            arguments=lambda share: ([_send(path) for path in share[1]], details),
            name=lambda share: f"the images '{share[1][0]}' to '{share[1][-1]}'",
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


def _send(path: Path) -> Sent:
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= _LARGEST_SENT:
            return NamedBytes(str(path), path.read_bytes())
    except (OSError, ValueError):
        pass
    try:  # judged here: it isn't there, is no file, or is so large that its pixels travel instead
        return read_image(path)
    except PoiseError as error:
        return Failure(str(path), error.code, str(error))
