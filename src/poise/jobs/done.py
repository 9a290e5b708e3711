"""What is known about a shard once it is done: the content of its receipt, and of the summary of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

SAMPLED = 32  # confidences of a shard that the summary looks at


@dataclass(frozen=True)
class Done:
    """One shard. It is small, and all that reaches the driver."""

    number: int
    shard: str
    images: int = 0
    rows: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)  # images without a result, by code
    labels: Mapping[str, int] = field(default_factory=dict)  # answers of the first method
    abstained: int = 0
    seconds: float = 0.0
    fingerprint: str | None = None  # of the model that the worker loaded
    sample: tuple[tuple[float, float], ...] = ()  # raw confidence and match of a few images, for the drift alarm
    problem: str = ""  # why the shard is not finished; it then has no part

    def receipt(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("number", "problem")}

    @classmethod
    def of(cls, number: int, receipt: Mapping[str, Any]) -> Done:
        """Read what `receipt` returned."""
        known = {row.name: receipt[row.name] for row in fields(cls) if row.name in receipt}
        return cls(**{**known, "number": number, "sample": tuple(map(tuple, known.get("sample", ())))})


@dataclass
class Summary:
    """What a job has done, over all its attempts. Its size does not depend on the number of images."""

    shards: int = 0
    images: int = 0
    rows: int = 0
    seconds: float = 0.0  # of all workers together
    abstained: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    problems: dict[str, str] = field(default_factory=dict)  # of shards that are not finished, by name
    sample: list[tuple[float, float]] = field(default_factory=list)

    def add(self, done: Done) -> None:
        """Count a shard."""
        if done.problem:
            if len(self.problems) < 1000:
                self.problems[done.shard] = done.problem
            return
        self.shards += 1
        self.images, self.rows, self.abstained = (
            self.images + done.images,
            self.rows + done.rows,
            self.abstained + done.abstained,
        )
        self.seconds += done.seconds
        self.failures.update(done.failures)
        self.labels.update(done.labels)
        self.sample += done.sample[: max(1, SAMPLED * 256 // max(256, self.shards))]
        if len(self.sample) > 4 * SAMPLED * 256:  # thinned evenly, so that memory stays bounded
            self.sample = self.sample[::2]
