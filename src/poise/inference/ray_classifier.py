"""Classifies images on a Ray cluster, with the results of a local `Classifier` in the same order."""

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
from poise.inference.batch_sizes import default_batch_size
from poise.inference.classifier import Classifier
from poise.inference.heuristics import check_reject
from poise.inference.option_checks import check_counts, find_methods
from poise.loading.sources import NamedBytes
from poise.options import Options
from poise.prompts import check_labels
from poise.results import Failure, Results

LARGEST_SENT = 64 * 2**20  # bytes; larger files are decoded before they are sent
_SHARE_FOR_GPU = 32  # images; only the workers know the memory of their GPUs

Outcome = Results | Failure
Sent = NamedBytes | LoadedImage | Failure


class ShareClassifier:
    """A `Classifier` in a worker process, which receives shares of the images."""

    def __init__(self, options: dict[str, Any], threads: int) -> None:
        torch.set_num_threads(threads)
        self._classifier: Classifier[Any] = Classifier(**options)

    def work(self, share: Sequence[Sent], details: bool) -> list[Outcome]:
        """Return one outcome per image."""
        return list(self._classifier.each(share, details=details))


class ClusterClassifier:
    """Classifies images on a Ray cluster. This process reads the files and sends their bytes.

    On CPUs, a share is one batch of a local run.

    Args:
        options: arguments of `Classifier`.
        address: address of the cluster; "" starts Ray on this machine.
        actors: number of worker processes; 0 = by the cluster's resources.
    """

    def __init__(self, options: dict[str, Any], *, address: str = "", actors: int = 0) -> None:
        views = options.get("views", Options.views)
        check_counts(views, options.get("batch_size"))  # before processes are started
        check_reject(options.get("reject"), check_labels(options["labels"], fewest=2))
        find_methods(options["method"])
        device = str(options.get("device", "auto"))
        gpu = None if device == "auto" else is_gpu(device)
        self._pool = Pool(partial(ShareClassifier, options), address=address, actors=actors, gpu=gpu)
        share = _SHARE_FOR_GPU if self._pool.on_gpu else default_batch_size(torch.device("cpu"), views)
        self.share = options.get("batch_size") or share

    def each(self, paths: Sequence[Path], *, details: bool = False) -> Iterator[Outcome]:
        """Yield one outcome per image, in order. If an error occurs, all finished outcomes are yielded before it."""
        shares = [tuple(paths[first : first + self.share]) for first in range(0, len(paths), self.share)]
        answers = self._pool.run(
            list(enumerate(shares)),
            arguments=lambda task: ([send(path) for path in task[1]], details),
            name=lambda task: f"the images '{task[1][0]}' to '{task[1][-1]}'",
        )
        finished: dict[int, list[Outcome]] = {}
        following = 0
        try:
            for (number, _), outcomes in answers:
                finished[number] = outcomes
                while following in finished:
                    yield from finished.pop(following)
                    following += 1
        except (PoiseError, KeyboardInterrupt):
            for number in sorted(finished):
                yield from finished[number]
            raise


def send(path: Path) -> Sent:
    """Return what is sent to a worker for a file: its bytes, its pixels, or the reason why it can't be read."""
    try:
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST_SENT:
            return NamedBytes(str(path), path.read_bytes())
    except (OSError, ValueError):
        pass
    try:  # the path does not exist, is not a file, or the file is large
        return read_image(path)
    except PoiseError as error:
        return Failure(str(path), error.code, str(error))
