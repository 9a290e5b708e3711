"""What a worker does with a shard: read it, answer or encode its images, and write one part.

The same workers run in this process and in the actors of a cluster. They hold one model, and read ahead across shards.
"""

from __future__ import annotations

import io
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from torch import Tensor

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.data.items import NO_LABEL, Item
from poise.data.sources import Shard, read_shard
from poise.data.stored_features import FeatureBlock, FeatureShard, Made, feature_table, read_blocks
from poise.errors import InvalidOptionError, PoiseError, UnreachableError, reason_of
from poise.inference.batches import Computed, SourceGroup
from poise.inference.classifier import Classifier
from poise.inference.predictor import Answers, Predictor
from poise.jobs.answer_table import SCHEMA, Shown, answer_table
from poise.jobs.done import SAMPLED, Done
from poise.loading.sources import NO_PIXELS, NO_PLAN, PlannedImage
from poise.loading.stored import check_made, to_device
from poise.parts import write_part
from poise.results import Failure
from poise.text import as_utf8
from poise.views import ViewRecipe

Z = TypeVar("Z")
Task = tuple[int, Shard]  # the number of a part, and what it is made of
_STORED_AT_ONCE = 1 << 23  # elements of the largest tensor when stored features are answered


class Worker(ABC):
    """Turns shards into parts of a folder."""

    @abstractmethod
    def run(self, tasks: Iterable[Task], progress: Callable[[int], None] = lambda images: None) -> Iterator[Done]:
        """Write a part for each shard, in order; a shard that can't be read is reported, and the others go on.

        Args:
            tasks: the shards, and the numbers of their parts.
            progress: called with the number of images of each batch.
        """

    def work(self, task: Task) -> Done:
        """Write the part of one shard."""
        (done,) = self.run([task])
        return done


class _Open(Generic[Z]):
    """A shard on its way: what was computed so far."""

    def __init__(self, number: int, shard: Shard, recipe: ViewRecipe, tuner: Callable[[], Any]) -> None:
        self.number, self.shard, self.problem = number, shard, ""
        self.group = SourceGroup(self.sources(), recipe, tuner)
        self.labels: list[int] = []
        self.parts: list[Z] = []
        self.images = 0
        self.began = 0.0

    def sources(self) -> Iterator[Item | Failure]:
        """Yield its images, and remember why there are no more."""
        self.began = time.perf_counter()
        try:
            for item in read_shard(self.shard):
                self.labels.append(item.label if isinstance(item, Item) else NO_LABEL)
                yield item
        except OSError as error:  # it can't be reached, and may be tried again later
            self.problem = str(error) if isinstance(error, PoiseError) else reason_of(error)


class _PartWorker(Worker, Generic[Z]):
    """A worker whose parts are made of what it computes batch by batch."""

    recipe: ViewRecipe
    out: str

    def run(self, tasks: Iterable[Task], progress: Callable[[int], None] = lambda images: None) -> Iterator[Done]:
        """Write a part for each shard."""
        waiting: deque[_Open[Z]] = deque()  # those that are read ahead, in order

        def groups() -> Iterator[SourceGroup]:
            for number, shard in tasks:
                waiting.append(_Open(number, shard, self.recipe, self.tuner))
                if not isinstance(shard, FeatureShard):  # which is read when its turn comes
                    yield waiting[-1].group

        for batch in self.batches(groups()):
            while waiting[0].group is not batch.group:
                yield self._finish(waiting.popleft())
            waiting[0].images += len(batch.images)
            waiting[0].parts.append(self.part(waiting[0], batch))
            progress(len(batch.images))
        while waiting:
            state = waiting.popleft()
            yield self._finish(state)
            progress(state.images if isinstance(state.shard, FeatureShard) else 0)

    def tuner(self) -> Any:
        """Return the tuner of the next batch, if there is one."""
        return None

    @abstractmethod
    def batches(self, groups: Iterable[SourceGroup]) -> Iterator[Computed[Any]]:
        """Compute the images of groups."""

    @abstractmethod
    def part(self, state: _Open[Z], batch: Computed[Any]) -> Z:
        """Return what is kept of a batch."""

    @abstractmethod
    def finish(self, state: _Open[Z]) -> tuple[pa.Table, dict[str, Any]]:
        """Return the table of a shard, and its facts for the receipt."""

    def _finish(self, state: _Open[Z]) -> Done:
        if isinstance(state.shard, FeatureShard):
            self.stored(state, state.shard)
        if state.problem:
            return Done(state.number, state.shard.name, problem=state.problem)
        table, facts = self.finish(state)
        codes = Counter(code for code in table.column("error_code").to_pylist() if code is not None)
        if state.images and codes[UnreachableError.code] == state.images:  # as if the shard itself were away
            return Done(state.number, state.shard.name, problem=table.column("error_message")[0].as_py())
        done = Done(
            number=state.number,
            shard=state.shard.name,
            images=state.images,
            rows=len(table),
            failures=dict(codes),
            seconds=round(time.perf_counter() - state.began, 3),
            **facts,
        )
        write_part(self.out, state.number, encode(table), done.receipt())
        return done

    def stored(self, state: _Open[Z], shard: FeatureShard) -> None:
        """Compute a shard of stored features."""
        raise InvalidOptionError("These images are encoded already.", hint="Give the images themselves.")


def encode(table: pa.Table) -> bytes:
    """Return a table as Parquet; the same rows give the same bytes. Features would not become smaller."""
    sink = io.BytesIO()
    features = "features" in table.column_names
    pq.write_table(
        table,
        sink,
        compression={name: "NONE" if name == "features" else "ZSTD" for name in table.column_names},
        use_dictionary=[name for name in table.column_names if name != "features"],
        row_group_size=8192 if features else 65_536,
        version="2.6",
    )
    return sink.getvalue()


@dataclass(frozen=True)
class AnswerJob:
    """What a worker needs to answer; picklable, so that it can be sent to another machine."""

    out: str
    options: Mapping[str, Any]  # of `Classifier`
    shown: Shown = field(default_factory=Shown)
    readers: int = 0  # threads or processes that read images; 0 = by the number of cores

    def worker(self) -> Worker:
        """Return the worker of this process."""
        return AnswerWorker(self)


class AnswerWorker(_PartWorker[pa.Table]):
    """Answers the images of shards."""

    def __init__(self, job: AnswerJob, classifier: Classifier[Any] | None = None) -> None:
        self.job, self.out = job, job.out
        self.classifier: Classifier[Any] = classifier or Classifier(**job.options)
        self.fingerprint = fingerprint(self.classifier.encoder)
        self.recipe = self.classifier.read_recipe()
        options = self.classifier.options
        self.predictor = Predictor(
            self.classifier.encoder,
            self.classifier.tuner,
            self.recipe,
            batch_size=options.batch_size or 0,
            workers=job.readers,
        )

    def tuner(self) -> Any:
        """Return the classifier's tuner."""
        return self.classifier.tuner

    def batches(self, groups: Iterable[SourceGroup]) -> Iterator[Computed[Answers]]:
        """Answer the images of groups."""
        return self.predictor.batches(groups)

    def part(self, state: _Open[pa.Table], batch: Computed[Answers]) -> pa.Table:
        """Return the rows of a batch."""
        return answer_table(self.classifier, batch.images, batch.result, state.shard.name, self.job.shown)

    def stored(self, state: _Open[pa.Table], shard: FeatureShard) -> None:
        """Answer a shard of stored features, in blocks that fit into memory."""
        state.began = time.perf_counter()
        try:
            for block in read_blocks(shard.path, self._rows()):
                state.parts.append(self._answer_block(state, block))
                state.images += len(block.sources)
        except PoiseError:
            raise
        except (OSError, ValueError) as error:
            state.problem = reason_of(error)

    def _rows(self) -> int:
        """Return how many images are answered at once: each has logits and, if tuned, text features of its own."""
        tuned = any(method.tunes for method in self.classifier.methods)
        width = self.classifier.tuner.texts.init_features().shape[-1] if tuned else 0
        return max(64, _STORED_AT_ONCE // (len(self.classifier.labels) * max(self.recipe.views, width)))

    def _answer_block(self, state: _Open[pa.Table], block: FeatureBlock) -> pa.Table:
        if self.classifier.tuner.reads == "views":
            raise InvalidOptionError(
                "Stored features can't be answered with prompts in the image tower.", hint="Give the images themselves."
            )
        images: list[PlannedImage | Failure] = [
            Failure(source, *failure) if failure else PlannedImage(source, NO_PIXELS, NO_PLAN, key, tuple(notes))
            for source, failure, key, notes in zip(block.sources, block.failures, block.keys, block.notes, strict=True)
        ]
        check_made(block.made, self.classifier.encoder, self.recipe)
        good = np.array([failure is None for failure in block.failures], dtype=bool)
        features = block.features[:, : self.recipe.views] if good.all() else block.features[good, : self.recipe.views]
        answers = self.predictor.answer_stored(to_device(features, self.classifier.encoder)) if len(features) else None
        return answer_table(self.classifier, images, answers, state.shard.name, self.job.shown)

    def finish(self, state: _Open[pa.Table]) -> tuple[pa.Table, dict[str, Any]]:
        """Return all rows of a shard."""
        table = pa.concat_tables(state.parts) if state.parts else SCHEMA.empty_table()
        first = table.filter(pc.equal(table["method"], self.classifier.methods[0].name))
        counts = first["label"].value_counts().to_pylist() if len(first) else []
        step = max(1, len(first) // SAMPLED)
        pairs = (first[name].to_numpy()[::step][:SAMPLED].tolist() for name in ("raw_confidence", "match"))
        return table, {
            "labels": {row["values"]: row["counts"] for row in counts},
            "abstained": pc.sum(pc.equal(first["decision"], "abstain")).as_py() or 0,
            "fingerprint": self.fingerprint,
            "sample": tuple(zip(*pairs, strict=True)) if self.classifier.guarantees else (),
        }


@dataclass(frozen=True)
class EmbedJob:
    """What a worker needs to encode images; picklable."""

    out: str
    model: str
    device: str = "auto"
    dtype: str = "auto"
    batch_size: int = 0
    logit_scale: float | None = None
    recipe: ViewRecipe = field(default_factory=ViewRecipe)
    readers: int = 0

    def worker(self) -> Worker:
        """Return the worker of this process."""
        return EmbedWorker(self)


class EmbedWorker(_PartWorker[tuple[list[PlannedImage | Failure], np.ndarray]]):
    """Encodes the images of shards."""

    def __init__(self, job: EmbedJob) -> None:
        self.job, self.out, self.recipe = job, job.out, job.recipe
        self.encoder = load_model(job.model, device=job.device, dtype=job.dtype, logit_scale=job.logit_scale)
        self.fingerprint = fingerprint(self.encoder)
        self.predictor = Predictor(self.encoder, views=job.recipe, batch_size=job.batch_size, workers=job.readers)
        self.width = 0

    def batches(self, groups: Iterable[SourceGroup]) -> Iterator[Computed[Tensor]]:
        """Encode the images of groups."""
        return self.predictor.feature_batches(groups)

    def part(self, state: Any, batch: Computed[Tensor]) -> tuple[list[PlannedImage | Failure], np.ndarray]:
        """Return images and features [B, V, D] of a batch; zeros where there are none."""
        if batch.result is None:
            return batch.images, np.zeros((len(batch.images), self.recipe.views, self._width()), np.float16)
        features = batch.result.numpy().astype(np.float16)
        self.width = features.shape[-1]
        if len(features) == len(batch.images):
            return batch.images, features
        readable = [not isinstance(image, Failure) for image in batch.images]
        spread = np.zeros((len(readable), *features.shape[1:]), np.float16)
        spread[readable] = features
        return batch.images, spread

    def finish(self, state: Any) -> tuple[pa.Table, dict[str, Any]]:
        """Return the rows of a shard."""
        images = [image for part, _ in state.parts for image in part]
        empty = np.zeros((0, self.recipe.views, self._width()), np.float16)
        features = np.concatenate([part for _, part in state.parts]) if state.parts else empty
        rows = [_row(image, label) for image, label in zip(images, state.labels, strict=True)]
        made = Made(self.job.model, self.fingerprint, asdict(self.recipe))
        return feature_table(rows, features, made), {"fingerprint": self.fingerprint}

    def _width(self) -> int:
        if not self.width:
            import torch

            size = self.encoder.image.size
            self.width = self.encoder.encode_images(torch.zeros(1, 1, 3, size, size)).shape[-1]
        return self.width


def _row(image: PlannedImage | Failure, label: int) -> dict[str, Any]:
    known: dict[str, Any] = {"source": as_utf8(image.source), "label": label}
    if isinstance(image, Failure):
        return {**known, "key": "", "notes": [], "error_code": image.code, "error_message": as_utf8(image.message)}
    return {**known, "key": image.key, "notes": list(image.notes), "error_code": None, "error_message": None}
