"""Class text features that a run stored before and after tuning, and their t-SNE."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from poise.errors import InvalidDatasetError, MissingDependencyError, reason_of
from poise.evaluate.storage.checks import MAX_PART, REPAIR
from poise.evaluate.storage.ledger import Ledger
from poise.files import checksum, read_bounded
from poise.report.records.runs import Records

PREFIX = "tuned/"
SHOWN = 200  # classes in a t-SNE: more take minutes and can't be told apart


@dataclass(frozen=True)
class TextFeatures:
    """The class texts of one dataset, before tuning and after it for one sample image."""

    run: str
    dataset: str
    labels: tuple[str, ...]
    image: str  # the sample's id
    start: np.ndarray  # [C, D]
    tuned: Mapping[str, np.ndarray]  # method -> [C, D]

    def dispersion(self, method: str | None = None) -> float:
        """Return the ATFD: the mean distance to the centroid, before tuning or after ``method``."""
        points = self.start if method is None else self.tuned[method]
        return float(np.linalg.norm(points - points.mean(0), axis=1).mean())

    def thinned(self) -> TextFeatures:
        """Return at most SHOWN of the classes, evenly spaced, for drawing."""
        keep = np.unique(np.linspace(0, len(self.labels) - 1, min(len(self.labels), SHOWN)).astype(int))
        return replace(
            self,
            labels=tuple(self.labels[i] for i in keep),
            start=self.start[keep],
            tuned={name: features[keep] for name, features in self.tuned.items()},
        )


def text_features(records: Records) -> Iterator[TextFeatures]:
    """Yield the features that the runs stored in ``features/*.npz``; raise an error if there are none."""
    files = [(run, file) for run, folder in records.folders.items() for file in sorted(folder.glob("features/*.npz"))]
    if not files:
        raise InvalidDatasetError(
            "The runs contain no text features.",
            hint="Repeat `poise bench run` with --tsne: it writes them into features/*.npz.",
        )
    for run, file in files:
        try:
            yield _read(run, file)
        except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, BadZipFile, zlib.error) as problem:
            message = f"The text features '{file}' are damaged: {reason_of(problem)}."
            raise InvalidDatasetError(message, hint=REPAIR) from None


def _read(run: str, file: Path) -> TextFeatures:
    """Read one file, after comparing it with the checksum in the run's ledger."""
    content = read_bounded(file, MAX_PART)
    known = Ledger(file.parents[1] / "ledger.jsonl").files().get(f"features/{file.name}")
    if known not in (None, checksum(content)):  # None: a run of an earlier version
        raise OSError("it is not the file that was written")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        tuned = {name.removeprefix(PREFIX): arrays[name] for name in arrays.files if name.startswith(PREFIX)}
        return TextFeatures(
            run=run,
            dataset=file.stem,
            labels=tuple(map(str, arrays["labels"])),
            image=str(arrays["sample_ids"][0]) if len(arrays["sample_ids"]) else "",
            start=arrays["start"].astype(np.float64),
            tuned={name: features[0].astype(np.float64) for name, features in tuned.items()},
        )


def embed(before: np.ndarray, after: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [C, 2] of both feature sets [C, D] in one t-SNE, so that they can be compared."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise MissingDependencyError.of("t-SNE", "scikit-learn", "report") from None
    points = np.concatenate([before, after])
    perplexity = min(30.0, (len(points) - 1) / 3)
    flat = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return flat[: len(before)], flat[len(before) :]
