"""Whole runs in this process, on the tiny model and generated images."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from functools import partial

import numpy as np
import pytest
import torch

from poise import methods
from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.backbones.loaders.tiny import load_tiny
from poise.data import ImageSet, Item, open_dataset
from poise.errors import ModelNotFoundError, RunConflictError, RunInterruptedError, UnknownNameError
from poise.evaluate import records, resolve, worker
from poise.evaluate.run import run
from poise.evaluate.storage import checks, run_folder
from poise.evaluate.storage.run_folder import status
from poise.images import read_image
from poise.inference.predictor import Predictor
from poise.prompts import tokenise
from poise.report.tables.formats import render
from poise.report.tables.results import result_tables
from poise.tuning import Tuner
from poise.views import plan_views
from poise.views.pil.crops import make_views
from tests.evaluate.attempt import contents, make_images
from tests.evaluate.small_run import configure, rows_of

pytestmark = pytest.mark.usefixtures("one_commit")


def test_each_image_seed_and_method_has_one_row(clean):
    table = records.read(clean)
    assert table.schema.equals(records.SCHEMA)
    assert table.num_rows == len(rows_of(clean)) == 9 * 2 * 3


def test_rows_are_what_the_parts_give_by_hand(clean, image_folder):
    encoder = load_model("tiny", device="cpu")
    labels = ("class0", "class1", "class2")
    tuner = Tuner(encoder, tokenise(encoder, labels), [methods.get("kld+cats")])
    file = image_folder / "class1" / "2.png"
    picture = read_image(file)
    plan = plan_views(picture.image.size, views=4, seed=2, key=picture.key)
    with torch.no_grad():
        answer = tuner.predict(encoder.encode_images(make_views(picture.image, encoder.image, plan)[None]))["kld+cats"]
    row = next(
        row
        for (seed, name, method), row in rows_of(clean).items()
        if (seed, method) == (2, "kld+cats") and name.endswith("class1/2.png")
    )
    np.testing.assert_allclose(row["probs"], answer.probs[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(row["init_confidence"], answer.init_probs.max().item(), atol=1e-5)
    assert row["label"] == 1
    assert row["prediction"] == answer.probs.argmax().item()
    assert row["target_prediction"] == answer.target_probs.argmax().item()


def test_zero_shot_rows_equal_the_init(clean):
    for (_, _, method), row in rows_of(clean).items():
        assert row["init_atfd"] > 0
        if method == "zero-shot":
            assert row["confidence"] == row["init_confidence"]
            assert row["entropy"] == row["init_entropy"]
            assert row["atfd"] == pytest.approx(row["init_atfd"], abs=1e-12)


@pytest.mark.parametrize("changed", [{"batch_size": 4}, {"chunk": 9}, {"workers": 1}, {"limit": 5}])
def test_how_the_work_is_cut_does_not_change_answers(clean, image_folder, tmp_path, changed):
    run(*configure(image_folder, tmp_path, **changed))
    expected, found = rows_of(clean), rows_of(tmp_path)
    assert set(found) <= set(expected)
    assert len(found) == (5 if "limit" in changed else 9) * 2 * 3
    for key, row in found.items():
        assert row["prediction"] == expected[key]["prediction"]
        assert row["confidence"] == pytest.approx(expected[key]["confidence"], abs=1e-4)


def test_views_are_encoded_once_for_all_methods(image_folder, tmp_path, watched):
    sizes = []
    watched(lambda encode: lambda views: sizes.append(len(views)) or encode(views))
    run(*configure(image_folder, tmp_path, seeds="1"))
    assert sum(sizes) == 9 + 3  # and three samples for the text features


def test_out_of_memory_halves_the_batch_of_views(clean, image_folder, tmp_path, watched):
    def limit(encode):
        def limited(views):
            if len(views) > 1:
                raise torch.OutOfMemoryError("full")
            return encode(views)

        return limited

    watched(limit)
    run(*configure(image_folder, tmp_path))
    expected = rows_of(clean)
    for key, row in rows_of(tmp_path).items():
        assert row["confidence"] == pytest.approx(expected[key]["confidence"], abs=1e-4)


def test_one_unreadable_image_affects_only_its_rows(clean, tmp_path):
    broken = make_images(tmp_path / "images", classes=3, each=3)
    victim = broken / "class1" / "1.png"
    victim.write_bytes(victim.read_bytes()[:200])
    summary = run(*configure(broken, tmp_path / "out"))
    assert summary.errors == 2  # one image under two seeds
    expected, found = rows_of(clean), rows_of(tmp_path / "out")
    assert set(found) == set(expected)
    for key, row in found.items():
        if key[1].endswith("class1/1.png"):
            assert row["error"].startswith("unreadable_image: ")
            assert row["prediction"] == records.NO_CLASS
        else:
            assert row["confidence"] == pytest.approx(expected[key]["confidence"], abs=1e-4)


def test_a_finished_run_loads_nothing_and_changes_nothing(clean, image_folder, monkeypatch):
    before = {file: file.stat().st_mtime_ns for file in clean.rglob("*.parquet")}
    monkeypatch.setattr(worker, "backbones", None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "poise.evaluate.prepare.resolve",
            lambda config: dataclasses.replace(config, dtype="float32", view_engine="batched"),
        )
        summary = run(*configure(image_folder, clean))
    assert summary.computed == 0
    assert summary.images == 18
    assert before == {file: file.stat().st_mtime_ns for file in clean.rglob("*.parquet")}


def test_header_is_complete(clean):
    head = json.loads((clean / "run" / "run.json").read_text())
    (dataset,) = head["datasets"].values()
    assert dataset["classes"] == ["class0", "class1", "class2"]
    assert head["config"]["views"] == 4
    assert head["config"]["device"] == "cpu"
    assert head["methods"]["c-tpt"]["terms"][1]["weight"] == 50.0
    assert {"torch", "poise", "python", "numpy"} <= set(head["versions"])
    assert len(head["config_hash"]) == 64


def test_another_model_of_the_same_name_does_not_resume_a_run(clean, image_folder, tmp_path, monkeypatch):
    shutil.copytree(clean, tmp_path / "runs")
    head = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
    assert head["model_fingerprint"] == fingerprint(load_model("tiny", device="cpu"))
    part = next((tmp_path / "runs").rglob("*.parquet"))
    part.unlink()
    other = load_tiny(device=torch.device("cpu"), dtype=torch.float32, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(worker.backbones, "load_model", lambda *given, **options: other)
        with pytest.raises(RunConflictError, match=f"{head['model_fingerprint']}.*{fingerprint(other)}"):
            run(*configure(image_folder, tmp_path / "runs"))
    assert not part.exists()
    run(*configure(image_folder, tmp_path / "runs"))
    assert part.exists()
    assert json.loads((tmp_path / "runs" / "run" / "run.json").read_text()) == head


def test_text_features_are_stored(clean):
    (file,) = (clean / "run" / "features").glob("*.npz")
    with np.load(file, allow_pickle=False) as arrays:
        assert arrays["labels"].tolist() == ["class0", "class1", "class2"]
        classes, width = arrays["start"].shape
        assert arrays["tuned/kld+cats"].shape == (len(arrays["sample_ids"]), classes, width)
        assert len(arrays["sample_ids"]) == 3
        assert not np.allclose(arrays["tuned/kld+cats"][0], arrays["start"], atol=1e-6)
        np.testing.assert_allclose(arrays["tuned/zero-shot"][0], arrays["start"], atol=1e-6)


def test_text_features_are_stored_on_request_only(image_folder, tmp_path):
    quick = {"seeds": "1", "methods": "zero-shot", "chunk": 9}
    run(*configure(image_folder, tmp_path, tsne=False, **quick))
    assert not (tmp_path / "run" / "features").exists()
    summary = run(*configure(image_folder, tmp_path, **quick))
    assert summary.computed == 0  # the answers are there, only the features are added
    assert len(list((tmp_path / "run" / "features").glob("*.npz"))) == 1


def test_methods_are_made_once_per_run_and_dataset_and_not_per_batch(image_folder, tmp_path, monkeypatch):
    made = []

    def counted(*given, **options):
        made.append(options.get("dataset", ""))
        return make_methods(*given, **options)

    make_methods = resolve.make_methods
    for module in (resolve, worker):
        monkeypatch.setattr(module, "make_methods", counted)
    run(*configure(image_folder, tmp_path, batch_size=1, tsne=False))  # 18 batches
    assert made == ["", "", f"folder:{image_folder}"]  # the run, its worker, and the worker's dataset


def test_the_header_is_parsed_once(image_folder, tmp_path, monkeypatch):
    run(*configure(image_folder, tmp_path, seeds="1", tsne=False))
    for part in tmp_path.rglob("*.parquet"):
        part.unlink()
    parsed = []
    monkeypatch.setattr(run_folder, "read_header", lambda path: parsed.append(path) or checks.read_header(path))
    assert run(*configure(image_folder, tmp_path, seeds="1", tsne=False)).computed == 3
    assert len(parsed) == 1


def test_a_run_without_augmix_does_not_say_that_it_has_it(image_folder, tmp_path, monkeypatch):
    images = dataclasses.replace(open_dataset(f"folder:{image_folder}"), augmix=True)
    monkeypatch.setattr("poise.evaluate.prepare.open_set", lambda name, root, config: images)
    run(*configure(image_folder, tmp_path, augmix="off", seeds="1", methods="zero-shot"))
    file = tmp_path / "run" / "run.json"
    head = json.loads(file.read_text())
    assert head["datasets"][images.name]["augmix"] is False
    head["datasets"][images.name]["augmix"] = True  # as earlier versions wrote it
    file.write_text(json.dumps(head))
    max(tmp_path.rglob("part-*.parquet")).unlink()
    assert run(*configure(image_folder, tmp_path, augmix="off", seeds="1", methods="zero-shot")).computed == 1


def test_a_kill_loses_little_of_a_small_run(tmp_path):
    images = make_images(tmp_path / "images", classes=2, each=25)
    values = {"limit": 50, "seeds": "1", "methods": "zero-shot", "views": 1, "chunk": 0, "batch_size": 2}
    assert configure(images, tmp_path, **values)[0].run_id == "run"
    summary = run(*configure(images, tmp_path, **values))
    assert summary.units == 13  # of 4 images: a twentieth, in whole batches
    stored = json.loads((tmp_path / "run" / "run.json").read_text())
    assert stored["config"]["chunk"] == 4


def test_a_run_of_an_earlier_version_keeps_its_chunks_and_its_name(image_folder, tmp_path):
    old, new = (
        configure(image_folder, tmp_path, name="", seeds="1", methods="zero-shot", chunk=chunk) for chunk in (128, 0)
    )
    assert old[0].run_id == new[0].run_id
    assert run(*old).units == 1
    max(tmp_path.rglob("part-*.parquet")).unlink()
    summary = run(*new)
    assert (summary.units, summary.computed) == (1, 1)


def test_status_counts(clean):
    found = status(clean / "run")
    assert (found.units, found.finished, found.images, found.damaged) == (6, 6, 18, ())


def test_a_stop_between_batches_keeps_finished_chunks(image_folder, tmp_path):
    calls = 0

    def check():
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RunInterruptedError(15)

    with pytest.raises(RunInterruptedError):
        run(*configure(image_folder, tmp_path), check=check)
    assert status(tmp_path / "run").finished == 1
    summary = run(*configure(image_folder, tmp_path))
    assert summary.computed == 5


def test_unknown_names_are_refused_before_anything_is_written(image_folder, tmp_path):
    with pytest.raises(UnknownNameError, match="engine"):
        run(*configure(image_folder, tmp_path, engine="locla"))
    with pytest.raises(ModelNotFoundError, match="poise fit"):
        run(*configure(image_folder, tmp_path, init="coop:x"))
    with pytest.raises(UnknownNameError, match="Did you mean 'size'"):
        run(*configure(image_folder, tmp_path, framework="dynaprompt", framework_options={"sizes": 3}))
    assert not (tmp_path / "run").exists()
    with pytest.raises(UnknownNameError, match="Did you mean 'c-tpt'"):
        run(*configure(image_folder, tmp_path, methods="ctpt"))


def test_a_model_that_is_not_finite_gives_error_rows_and_tables_still_work(image_folder, tmp_path, watched):
    calls = []

    def poisoned(encode):
        def encoded(views):
            calls.append(len(views))
            return encode(views) * (float("nan") if len(calls) == 1 else 1.0)  # the first batch only

        return encoded

    watched(poisoned)
    summary = run(*configure(image_folder, tmp_path, seeds="1"))
    assert (summary.images, summary.errors) == (9, 2)
    rows = rows_of(tmp_path)
    failed = [row for row in rows.values() if row["error"]]
    assert len(failed) == 2 * 3
    assert {(row["prediction"], row["correct"], row["probs"]) for row in failed} == {(records.NO_CLASS, False, None)}
    assert all(row["error"].startswith("non_finite: ") for row in failed)
    assert all(np.isfinite(row["probs"]).all() for row in rows.values() if not row["error"])
    assert "kld+cats" in render(result_tables(tmp_path, metrics=["accuracy", "ece"]), "md")


def test_images_read_by_other_processes_give_the_same_bytes(image_folder, tmp_path, monkeypatch):
    broken = image_folder / "class1" / "broken.png"
    broken.write_bytes(b"no picture")
    try:
        here = run(*configure(image_folder, tmp_path / "here", seeds="1"))
        monkeypatch.setattr(worker, "Predictor", partial(Predictor, processes=True))
        apart = run(*configure(image_folder, tmp_path / "apart", seeds="1"))
    finally:
        broken.unlink()
    assert here.errors == apart.errors == 1
    assert contents(tmp_path / "here") == contents(tmp_path / "apart")


def test_wrong_labels_are_noticed_early(image_folder, tmp_path, monkeypatch, caplog):
    items = tuple(Item(f"{index}", index % 3, str(image_folder / "class0" / "0.png")) for index in range(120))
    images = ImageSet("folder:wrong", ("a", "b", "c"), items)  # one picture under three labels: chance
    monkeypatch.setattr("poise.evaluate.prepare.open_set", lambda name, root, config: images)
    with caplog.at_level(logging.WARNING):
        summary = run(
            *configure(image_folder, tmp_path, chunk=60, methods="zero-shot", views=1, seeds="1", batch_size=60)
        )
    assert len(summary.warnings) == 1
    assert "no better than chance" in summary.warnings[0]
    assert "no better than chance" in caplog.text
