"""The remark at the end of `poise classify` that the images are not like those of the calibration."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from poise.cli.output.verbose import remark
from poise.results import Failure, Result, Results

if TYPE_CHECKING:
    from poise.calibration import Calibration


class StillValid:
    """Compares the images of a command with those of the calibration.

    It does so in random order: files are found in the order of their names, which often is that of their labels, and
    images in such an order would differ from those before them although all of them are like the calibration's.
    """

    def __init__(self, calibration: Calibration, method: str) -> None:
        self.calibration, self.method = calibration, method
        self._results: list[Result] = []

    def passed_on(self, outcomes: Iterable[Results | Failure]) -> Iterator[Results | Failure]:
        """Yield the outcomes, and remember the results."""
        for outcome in outcomes:
            if isinstance(outcome, dict):
                self._results.append(outcome[self.method])
            yield outcome

    def say(self, *, verbose: bool) -> None:
        """Print a sentence if the images differ; with ``verbose`` also if they don't."""
        watch = self.calibration.monitor(method=self.method)
        random.Random(0).shuffle(self._results)
        for result in self._results:
            watch.update(result)
        if watch.alarm or verbose:
            remark(f"{watch} (In random order; see `poise monitor`.)")
