"""The answers of a run as a record binds them: one entry per image and seed, with the pixels' hash and every method."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from poise.errors import InvalidDatasetError

DIGITS = 3  # of a confidence


def canonical(content: Any) -> bytes:
    """Return the one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True, order=True)
class Answers:
    """What all methods answered for one image under one seed."""

    seed: int
    id: str
    label: int
    pixels: str
    by_method: tuple[tuple[str, int, float], ...]  # method, class, confidence; no class and 0 for an error

    def plain(self) -> list[Any]:
        """Return it as JSON has it."""
        answers = {method: [label, confidence] for method, label, confidence in self.by_method}
        return [self.seed, self.id, self.label, self.pixels, answers]

    @classmethod
    def of(cls, content: Any) -> Answers:
        """Read what `plain` returns.

        Raises:
            ValueError: It is something else.
        """
        try:
            seed, name, label, pixels, answers = content
            entries = [(str(method), int(label), float(confidence)) for method, (label, confidence) in answers.items()]
            return cls(int(seed), str(name), int(label), str(pixels), tuple(sorted(entries)))
        except (TypeError, AttributeError) as problem:
            raise ValueError(f"an answer is not one: {problem}") from None

    def leaf(self) -> bytes:
        """Return the entry's bytes in the tree of all answers."""
        return canonical(self.plain())


def answers_in(tables: Iterable[pa.Table]) -> dict[str, list[Answers]]:
    """Return the answers in files of records by dataset, sorted by seed and id."""
    found: dict[str, dict[tuple[int, str], dict[str, Any]]] = {}
    columns = ("dataset", "seed", "id", "label", "pixels", "method", "prediction", "confidence", "error")
    for table in tables:
        if "pixels" not in table.column_names:
            raise InvalidDatasetError("The run has no hashes of images.", hint="Run it again with this version.")
        for row in table.select(list(columns)).to_pylist():
            image = found.setdefault(row["dataset"], {}).setdefault((row["seed"], row["id"]), {**row, "answers": []})
            confidence = 0.0 if row["error"] else round(float(row["confidence"]), DIGITS)
            image["answers"].append((row["method"], int(row["prediction"]), confidence))
    return {dataset: sorted(map(_answers, images.values())) for dataset, images in sorted(found.items())}


def _answers(image: Mapping[str, Any]) -> Answers:
    by_method = tuple(sorted(image["answers"]))
    return Answers(image["seed"], image["id"], image["label"], image["pixels"] or "", by_method)


def pixel_leaves(answers: Iterable[Answers]) -> list[bytes]:
    """Return one entry per image, sorted by id: its id and the hash of its pixels."""
    return [f"{name}\0{pixels}".encode() for name, pixels in sorted({(each.id, each.pixels) for each in answers})]
