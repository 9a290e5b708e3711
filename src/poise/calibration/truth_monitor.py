"""Whether promises still hold, tested on labels that come later; valid after every image, like `monitor.py`.

Three tests, which share alpha:

- Answers: each confidence, negative where the answer is wrong, is ranked among those of the calibration images and of
  the new images before it, as in `monitor.py`. It notices more errors, surer errors, and other confidences.
- Coverage: the set's threshold is the k-th smallest of n scores, so that the coverage of later images is Beta(k, n + 1
  - k) distributed, and 87 instead of 90 % is no fault. The capital is the ratio of two probabilities of the outcomes:
  under lower coverages (Beta distributions with a smaller mean), and under this one. It falls if any outcome changes
  from a miss to a hit, now or earlier. Sets that are larger than needed (ties, or at least one label) therefore raise
  no false alarm.
- Error: a certified error says that at most a share of the answered images is wrong. Bets on higher shares can't win
  where that is so; false alarms are those of the test, or of a certificate that does not hold (delta).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from poise.calibration.conformal import covering_rank
from poise.calibration.feasible import certified, check_coverage
from poise.calibration.monitor import JUMP, LARGEST, Gambler
from poise.errors import InvalidOptionError
from poise.text import counted

if TYPE_CHECKING:
    from poise.calibration.stored import MethodCalibration

LOWER = (0.97, 0.9, 0.75, 0.5)  # coverages that are bet on, as shares of the promised one
HIGHER = (1.25, 1.5, 2.0, 4.0)  # error rates that are bet on, as multiples of the certified one
TITLES = {
    "answers": "right and wrong answers differ from those of the calibration images",
    "coverage": "sets contain the correct label less often than promised",
    "error": "more of the answered images are wrong than certified",
}


class TruthMonitor:
    """Says when later images with labels contradict a calibration; `Calibration.truth_monitor` makes it.

    If calibration images and new ones are exchangeable, and a certificate holds, it ever raises an alarm with a
    probability of at most ``alpha``, however many images there are and whenever one looks.

    Args:
        name: of the method.
        part: its calibration.
        coverage: of the prediction sets that `update` is told about; None: no such test.
        max_error: certified share of wrong answers; None: no such test.
        alpha: probability of a false alarm over the whole stream.
        seed: of the random numbers that break ties.

    Attributes:
        rang: by test, the number of the image, from 1, at which an alarm was raised.
        images: how many new images were seen.
    """

    def __init__(
        self,
        name: str,
        part: MethodCalibration,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        alpha: float = 0.01,
        seed: int = 0,
    ) -> None:
        if not 0 < alpha < 1:
            raise InvalidOptionError(f"alpha is {alpha}.", hint="Give a probability between 0 and 1, such as 0.01.")
        self.alpha, self.images, self.rang = alpha, 0, dict[str, int]()
        self._random = np.random.default_rng(seed)
        self._answers = Gambler(np.where(part.correct, part.confidence, -part.confidence))
        self._coverage = self._error = self._threshold = None
        if coverage is not None:
            check_coverage(coverage, len(part.labels))
            self._coverage = CoverageTest(len(part.labels), covering_rank(len(part.labels), coverage))
        if max_error is not None:
            if part.node_thresholds is not None:
                raise InvalidOptionError(
                    "The calibration has a tree of labels.", hint="Leave max_error out: it is of labels, not of nodes."
                )
            self._threshold = certified(name, part, max_error).threshold
            self._error = _Error(max_error)

    @property
    def evidence(self) -> dict[str, float]:
        """How strongly the images so far speak against each promise; the alarm is raised at 1 / alpha."""
        tests = {"answers": self._answers, "coverage": self._coverage, "error": self._error}
        found = {name: test.log_capital for name, test in tests.items() if test is not None}
        return {name: math.exp(min(log, LARGEST)) / len(found) for name, log in found.items()}

    @property
    def alarm(self) -> bool:
        """Whether the evidence of a test ever reached 1 / alpha."""
        return bool(self.rang)

    def update(self, confidence: float, correct: bool, covered: bool | None = None) -> None:
        """Take the next image.

        Args:
            confidence: before calibration.
            correct: whether the predicted label is the correct one.
            covered: whether the prediction set contains the correct label; needed for the test of coverage.
        """
        if not 0 <= confidence <= 1:
            raise InvalidOptionError(f"A confidence is {confidence}.", hint="Give a probability from 0 to 1.")
        if self._coverage is not None and covered is None:
            raise InvalidOptionError(
                "An image has no prediction set.", hint="Classify with --coverage, or test without coverage."
            )
        self.images += 1
        self._answers.update(confidence if correct else -confidence, float(self._random.random()))
        if self._coverage is not None:
            self._coverage.update(bool(covered))
        if self._error is not None and self._threshold is not None and confidence >= self._threshold:
            self._error.update(not correct)
        for name, value in self.evidence.items():
            if value >= 1 / self.alpha:
                self.rang.setdefault(name, self.images)

    def __str__(self) -> str:
        """Return what was found, one sentence for each test."""
        lines = []
        for name, value in self.evidence.items():
            about = f"evidence {value:.3g}, alarm at {1 / self.alpha:g}"
            if name in self.rang:
                lines.append(f"Alarm at image {self.rang[name]} of {self.images}: {TITLES[name]} ({about}).")
            else:
                lines.append(f"No sign after {counted(self.images, 'labelled image')} that {TITLES[name]} ({about}).")
        return "\n".join(lines)


class CoverageTest:
    """Ratio of the probabilities of hits and misses under lower coverages and under Beta(k, n + 1 - k)."""

    def __init__(self, images: int, rank: int) -> None:
        self._hits, self._misses = float(rank), float(images + 1 - rank)
        self._lower = [(rank * share, images + 1 - rank * share) for share in LOWER]
        self._logs = np.zeros(len(LOWER))

    @property
    def log_capital(self) -> float:
        """The logarithm of the ratio."""
        return float(np.logaddexp.reduce(self._logs) - math.log(len(LOWER)))

    def update(self, covered: bool) -> None:
        """Count an image, whose set contains the correct label or not."""
        at, now = (0, self._hits) if covered else (1, self._misses)
        self._logs += [math.log(pair[at] / now) for pair in self._lower]
        step = np.array([1.0, 0.0] if covered else [0.0, 1.0])
        self._hits, self._misses = self._hits + step[0], self._misses + step[1]
        self._lower = [(hits + step[0], misses + step[1]) for hits, misses in self._lower]


class _Error:
    """Bets that answers are wrong more often than a level."""

    def __init__(self, level: float) -> None:
        self.log_capital = 0.0
        rates = np.minimum(level * np.array(HIGHER), (1 + level) / 2)
        self._paid = np.stack([(1 - rates) / (1 - level), rates / level])  # for a right and a wrong answer
        self._shares = np.full(len(HIGHER), 1 / len(HIGHER))

    def update(self, wrong: bool) -> None:
        paid = ((1 - JUMP) * self._shares + JUMP / len(HIGHER)) * self._paid[int(wrong)]
        self.log_capital += math.log(paid.sum())
        self._shares = paid / paid.sum()
