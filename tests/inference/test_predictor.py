"""The predictor: sources, order, failures, memory, cancellation, and equal answers of classify and bench."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import poise
from poise import methods
from poise.backbones import load_model
from poise.data.items import Held, Item
from poise.data.opening import open_dataset
from poise.errors import PoiseError, RunInterruptedError
from poise.evaluate import records
from poise.evaluate.config import build
from poise.evaluate.run import run
from poise.evaluate.storage import header
from poise.evaluate.units import choose
from poise.images import read_image
from poise.inference.answers import of_image
from poise.inference.batch_sizes import default_batch_size, in_halves
from poise.inference.batches import SourceGroup, Watch
from poise.inference.predictor import Predictor
from poise.loading.overlap import map_ahead
from poise.prompts import tokenise
from poise.results import Failure
from poise.tuning import make_tuner
from poise.views import ViewRecipe
from tests.evaluate.attempt import make_images

LABELS = ["cat", "dog", "tree"]
RECIPE = ViewRecipe(views=6, seed=1)
METHOD = "kld+cats"


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def tuner(encoder):
    return make_tuner(encoder, tokenise(encoder, LABELS), [methods.get(METHOD)])


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    root = make_images(tmp_path_factory.mktemp("images"), classes=1, each=9)
    return sorted(root.rglob("*.png"))


def predictor(encoder, tuner, *, batch_size=4, workers=2, **options) -> Predictor:
    return Predictor(encoder, tuner, RECIPE, batch_size=batch_size, workers=workers, **options)


def probs(outcomes) -> np.ndarray:
    return np.stack([outcome[METHOD].probs for outcome in outcomes])


# Sources and order


def test_every_kind_of_source_gives_the_same_answer(encoder, tuner, files) -> None:
    file = files[0]
    image, content = Image.open(file), file.read_bytes()
    sources = [
        file,
        str(file),
        content,
        image,
        np.asarray(image),
        torch.from_numpy(np.array(image)).permute(2, 0, 1),
        Item("an id", 1, str(file)),
        Item("a name", -1, Held(content)),
        read_image(file),
    ]
    outcomes = list(predictor(encoder, tuner, batch_size=1).run(sources))
    assert all(np.array_equal(row, probs(outcomes)[0]) for row in probs(outcomes))
    assert [of_image(outcome).source for outcome in outcomes[:1] + outcomes[6:]] == [
        str(file),
        "an id",
        "a name",
        str(file),
    ]


@pytest.mark.parametrize("processes", [False, True])
def test_unreadable_images_do_not_affect_others(encoder, tuner, files, tmp_path, processes) -> None:
    text = tmp_path / "text.png"
    text.write_text("no image")
    passed_on = Failure("elsewhere", "some_code", "an earlier failure")
    sources = [files[0], text, files[1], tmp_path / "missing.png", *files[2:], 3.5, passed_on]
    outcomes = list(predictor(encoder, tuner, processes=processes).run(iter(sources)))
    wrong = {1: str(text), 3: str(tmp_path / "missing.png"), 11: "<float>", 12: "elsewhere"}
    for position, outcome in enumerate(outcomes):
        assert isinstance(outcome, Failure) == (position in wrong)
        source = outcome.source if isinstance(outcome, Failure) else of_image(outcome).source
        assert source == wrong.get(position, str(sources[position]))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [failure.code for failure in failures] == ["unreadable_image"] * 3 + ["some_code"]
    answered = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    np.testing.assert_allclose(probs(answered), probs(predictor(encoder, tuner).run(files)), atol=1e-5)


def test_groups_are_in_order_and_share_no_batch(encoder, files) -> None:
    seen: list[tuple[str, int]] = []

    class Spy:
        reads, ordered = "features", False

        def __init__(self, name: str, labels: list[str]) -> None:
            self.name, self.tuner = name, make_tuner(encoder, tokenise(encoder, labels), [methods.get("zero-shot")])
            self.texts = self.tuner.texts

        def predict(self, inputs):
            seen.append((self.name, len(inputs)))
            return self.tuner.predict(inputs)

    spies = [Spy("a", LABELS), Spy("b", LABELS[:2])]
    groups = [SourceGroup(files[:5], RECIPE, lambda: spies[0]), SourceGroup(files[5:8], RECIPE, lambda: spies[1])]
    outcomes = list(predictor(encoder, None).run_groups(groups))
    assert seen == [("a", 4), ("a", 1), ("b", 3)]
    assert [len(outcome["zero-shot"].probs) for outcome in outcomes] == [3] * 5 + [2] * 3


def test_generators_are_read_lazily(encoder, tuner, files) -> None:
    taken = []

    def sources():
        for number in range(1000):
            taken.append(number)
            yield files[number % len(files)]

    stream = predictor(encoder, tuner, batch_size=2).run(sources())
    next(stream)
    assert len(taken) <= 8  # a batch, those read ahead, and the next one
    stream.close()


def test_features_and_views_come_from_the_same_pipeline(encoder, tuner, files) -> None:
    made = predictor(encoder, tuner)
    views, features = list(made.views(files[:3])), list(made.features([*files[:2], "missing.png"]))
    assert views[0].shape == (6, 3, encoder.image.size, encoder.image.size)
    assert isinstance(features[2], Failure)
    with torch.no_grad():
        torch.testing.assert_close(features[1], encoder.encode_images(views[1][None])[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("augmix", [False, True])
def test_both_view_engines_cut_nearly_the_same_crops(encoder, files, augmix) -> None:
    """In grey levels: crops differ by rounding; AugMix may turn one level into several (posterize, equalize)."""
    made = {
        engine: torch.stack(list(Predictor(encoder, views=ViewRecipe(8, 1, augmix, engine=engine)).views(files)))
        for engine in ("pil", "batched")
    }
    levels = torch.tensor(encoder.image.std)[:, None, None] * 255
    gap = (made["pil"] - made["batched"]).abs() * levels
    assert gap[:, 0].max() < 1e-3  # the plain view is one and the same
    assert gap[:, 1:].mean() < (0.5 if augmix else 0.1)
    assert gap[:, 1:].max() <= (64 if augmix else 2.01)
    other = torch.stack(list(Predictor(encoder, views=ViewRecipe(8, 2, augmix)).views(files)))
    assert (((made["pil"] - other).abs() * levels)[:, 1:]).mean() > 10  # other crops exceed the bounds above


# Memory, cancellation, processes


def test_a_batch_that_does_not_fit_is_halved(encoder, tuner, files, monkeypatch) -> None:
    expected = probs(predictor(encoder, tuner).run(files))
    sizes: dict[str, list[int]] = {"encode": [], "tune": []}

    def limited(stage, work, most):
        def run_limited(batch):
            sizes[stage].append(len(batch))
            if len(batch) > most:
                raise torch.OutOfMemoryError("full")
            return work(batch)

        return run_limited

    monkeypatch.setattr(encoder, "encode_images", limited("encode", encoder.encode_images, 1), raising=False)
    monkeypatch.setattr(tuner, "predict", limited("tune", tuner.predict, 2), raising=False)
    actual = probs(predictor(encoder, tuner, batch_size=4).run(files[:4]))
    assert sizes == {"encode": [4, 2, 1, 1, 2, 1, 1], "tune": [4, 2, 2]}
    np.testing.assert_allclose(actual, expected[:4], atol=1e-5)


def test_views_that_do_not_fit_are_cut_again_in_halves(encoder, tuner, files, monkeypatch) -> None:
    made = predictor(encoder, tuner)
    expected = probs(made.run(files[:4]))
    views, asked = made.preparer.views, []

    def limited(images, recipe):
        asked.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError("full")
        return views(images, recipe)

    monkeypatch.setattr(made.preparer, "views", limited)
    np.testing.assert_allclose(probs(made.run(files[:4])), expected, atol=1e-5)
    assert asked == [4, 4, 2, 2]


def test_one_image_that_does_not_fit_raises_an_error() -> None:
    def full(batch):
        raise torch.OutOfMemoryError("full")

    with pytest.raises(PoiseError, match="fewer views") as caught:
        in_halves(full, [1, 2, 3], sum)
    assert caught.value.code == "out_of_memory"


def test_a_batch_of_an_ordered_stream_is_not_halved(encoder, files) -> None:
    stream = make_tuner(encoder, tokenise(encoder, LABELS), [methods.get(METHOD)], framework="dynaprompt")
    asked = []

    def full(batch):
        asked.append(len(batch))
        raise torch.OutOfMemoryError("full")

    stream.predict = full
    with pytest.raises(torch.OutOfMemoryError):
        list(predictor(encoder, stream).run(files[:4]))
    assert asked == [4]


def test_check_stops_a_run_between_batches_and_progress_counts_images(encoder, tuner, files) -> None:
    done: list[int] = []

    def check() -> None:
        if sum(done) >= 4:
            raise RunInterruptedError(15)

    group = SourceGroup(files, RECIPE, lambda: tuner)
    stream = predictor(encoder, tuner, batch_size=2).run_groups([group], watch=Watch(check, done.append))
    answered = [next(stream) for _ in range(4)]
    with pytest.raises(RunInterruptedError):
        next(stream)
    assert all(not isinstance(outcome, Failure) for outcome in answered)
    assert done == [2, 2]


def test_a_reader_process_that_dies_gives_one_failure(encoder, tuner, files) -> None:
    fatal = Item("fatal", 0, Fatal())
    outcomes = list(predictor(encoder, tuner, workers=1, processes=True).run([files[0], fatal, files[1]]))
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [False, True, False]
    assert (outcomes[1].source, outcomes[1].code) == ("fatal", "reader_lost")


class Fatal:
    """Ends the process that unpickles it, by calling os._exit."""

    def __reduce__(self):
        return os._exit, (3,)


def test_processes_read_the_images_of_a_long_run_on_cuda(encoder, tuner, files, monkeypatch) -> None:
    """Threads read the first images, then processes."""
    made = predictor(encoder, tuner, workers=1)
    started, read = threading.Event(), []

    class Processes:
        def __init__(self, workers: int, work: Any) -> None:
            started.set()

        def run(self, work: Any, *given: Any) -> Any:
            read.append(given)
            return work(*given)

    monkeypatch.setattr("poise.loading.prepare.FEW", 2)
    monkeypatch.setattr("poise.loading.prepare.ReaderProcesses", Processes)
    monkeypatch.setattr(made.preparer, "encoder", SimpleNamespace(device=torch.device("cuda")))

    def prepare(number: int) -> None:  # an image that can't be read is not cut, which this device could not do
        assert made.preparer.prepare("missing.png", made.recipe, number).code == "unreadable_image"

    prepare(0)
    prepare(1)
    assert not started.is_set()  # none are started for a few images
    prepare(2)
    assert started.wait(60)
    for number in range(3, 1000):  # threads go on until the processes have started
        prepare(number)
        if read:
            break
    assert read


def test_overlapping_stages_give_the_same_answers(encoder, tuner, files, monkeypatch) -> None:
    """As on CUDA, without streams: one thread cuts views while another one tunes."""
    expected = probs(predictor(encoder, tuner).run(files))

    def staged(jobs, device, first, second):
        made = map_ahead(first, jobs, threads=1, window=1)
        return map_ahead(second, made, threads=1, window=1)

    monkeypatch.setattr("poise.inference.batches.run_stages", staged)
    outcomes = list(predictor(encoder, tuner).run([*files[:3], "missing.png", *files[3:]]))
    assert isinstance(outcomes.pop(3), Failure)
    np.testing.assert_allclose(probs(outcomes), expected, atol=1e-5)


def test_the_default_batch_size_depends_on_device_and_views() -> None:
    cpu = torch.device("cpu")
    assert [default_batch_size(cpu, views) for views in (1, 16, 64, 100, 1000)] == [16, 16, 4, 2, 1]


# Equal answers


@pytest.fixture
def one_commit(monkeypatch) -> None:
    monkeypatch.setattr(header, "commit", lambda: "0")


@pytest.mark.parametrize("batch_size", [1, 3])
def test_classify_and_bench_give_the_same_probabilities_bit_by_bit(tmp_path, one_commit, batch_size) -> None:
    root = make_images(tmp_path / "images", classes=3, each=2)
    names = ["zero-shot", "c-tpt", METHOD]
    run(
        *build(
            {
                "datasets": f"folder:{root}",
                "model": "tiny",
                "methods": names,
                "seeds": "5",
                "views": 6,
                "batch_size": batch_size,
                "device": "cpu",
                "out": str(tmp_path),
                "name": "run",
            }
        )
    )
    rows = {(row["id"], row["method"]): row for row in records.read(tmp_path).to_pylist()}
    images = open_dataset(f"folder:{root}")
    order = choose([item.id for item in images.items], [item.label for item in images.items], 0)
    items = [images.items[position] for position in order]  # the same batches, so that sums are rounded alike
    classify = poise.Classifier(
        images.classes, "tiny", names, template=images.template, views=6, seed=5, device="cpu", batch_size=batch_size
    )
    for item, answers in zip(items, classify([Path(item.read) for item in items]), strict=True):
        for name, result in answers.items():
            row = rows[item.id, name]
            assert (result.confidence, images.classes[row["prediction"]]) == (row["confidence"], result.label)
            stored = dict(zip(images.classes, row["probs"], strict=True))
            assert {label: float(np.float32(value)) for label, value in result.probabilities.items()} == stored


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_the_batch_size_changes_answers_by_rounding_at_most(encoder, tuner, files, size) -> None:
    expected = probs(predictor(encoder, tuner).run(files))
    np.testing.assert_allclose(probs(predictor(encoder, tuner, batch_size=size).run(files)), expected, atol=1e-5)
