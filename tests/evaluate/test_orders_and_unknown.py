"""Orders of streams, several datasets as one stream, and classes that the labels leave out."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve
from typer.testing import CliRunner

from poise.cli.app import app
from poise.data import ImageSet, Item
from poise.errors import InvalidOptionError, UnknownNameError
from poise.evaluate.config import RunConfig, build
from poise.evaluate.run import run
from poise.evaluate.streams import UNKNOWN, leave_out, mixed, stream
from poise.metrics import fpr95, outside_auroc
from poise.report.records.runs import load
from poise.report.tables.unknown import SCORES, unknown_table
from tests.evaluate.attempt import make_images
from tests.evaluate.small_run import configure, rows_of

pytestmark = pytest.mark.usefixtures("one_commit")


def test_a_stream_by_class_has_each_class_once():
    ids, labels = [f"{at}" for at in range(60)], [at % 4 for at in range(60)]
    orders = [stream(ids, range(60), seed, labels) for seed in range(8)]
    for order in orders:
        found = [labels[at] for at in order]
        assert sorted(order) == list(range(60))
        assert sum(a != b for a, b in pairwise(found)) == 3
    assert len({tuple(dict.fromkeys(labels[at] for at in order)) for order in orders}) > 1  # classes in other orders
    assert stream(ids, range(60), 1) != orders[1]


def test_a_run_by_class_is_computed_in_that_order(image_folder, tmp_path):
    changed = {"methods": "tda", "order": "by-class", "seeds": "1", "tsne": False}
    run(*configure(image_folder, tmp_path, **changed))
    labels = [row["label"] for row in rows_of(tmp_path).values()]
    assert sum(a != b for a, b in pairwise(labels)) == 2
    (setting,) = load(tmp_path).settings
    assert setting.values["order"] == "by-class"


def test_the_defaults_keep_the_names_of_folders():
    usual = RunConfig(datasets=("dtd",)).hashed()
    assert "order" not in usual
    assert "unknown" not in usual
    assert RunConfig(datasets=("dtd",), unknown=0.5).hashed()["unknown"] == 0.5


@pytest.mark.parametrize("wrong", [{"unknown": 1.0}, {"unknown": -0.1}, {"unknown": 0.5, "calibrate": 100}])
def test_shares_that_no_run_can_have(wrong):
    with pytest.raises(InvalidOptionError, match="unknown"):
        build({"datasets": "dtd", **wrong})
    with pytest.raises(UnknownNameError):
        build({"datasets": "dtd", "order": "backwards"})


def test_mixed_datasets_share_labels_of_one_name():
    sets = {
        "a": ImageSet("a", ("cat", "dog"), (Item("1", 1, "x"),)),
        "b": ImageSet("b", ("dog", "cup"), (Item("1", 0, "y"), Item("2", 1, "z"))),
        "c": ImageSet("c", ("cup",), (), template="a sketch of a {}."),
    }
    both = mixed("mixed:a+b", sets.__getitem__)
    assert both.classes == ("cat", "dog", "cup")
    assert [(item.id, item.label) for item in both.items] == [("a/1", 1), ("b/1", 1), ("b/2", 2)]
    with pytest.raises(InvalidOptionError, match="one dataset"):
        mixed("mixed:a", sets.__getitem__)
    with pytest.raises(InvalidOptionError, match="template"):
        mixed("mixed:a+c", sets.__getitem__)


def test_a_run_on_two_folders_is_one_stream(tmp_path):
    names = [make_images(tmp_path / name, classes=2, each=2) for name in ("one", "two")]
    mix = "mixed:" + "+".join(f"folder:{name}" for name in names)
    run(*configure(names[0], tmp_path / "out", datasets=mix, methods="tda", seeds="1", tsne=False))
    rows = list(rows_of(tmp_path / "out").values())
    assert len(rows) == 8
    assert {row["dataset"] for row in rows} == {mix}
    assert len({row["id"] for row in rows}) == 8


def test_classes_are_left_out_by_their_names():
    names = tuple(f"class {at}" for at in range(10))
    images = ImageSet("x", names, tuple(Item(str(at), at, "") for at in range(10)))
    part = leave_out(images, 0.3)
    assert len(part.classes) == 7
    assert sum(item.label == UNKNOWN for item in part.items) == 3
    for item in part.items:
        assert item.label == UNKNOWN or part.classes[item.label] == names[int(item.id)]
    turned = ImageSet("x", names[::-1], ())
    assert set(leave_out(turned, 0.3).classes) == set(part.classes)
    with pytest.raises(InvalidOptionError, match="leaves out 0 of the 10"):
        leave_out(images, 0.01)


def test_metrics_are_of_known_images_and_the_table_of_both(tmp_path):
    folder = make_images(tmp_path / "images", classes=4, each=4)
    methods = ("zero-shot", "kld+cats", "zero", "tda", "onzeta")  # tuned, by votes, along a stream
    changed = {"unknown": 0.5, "methods": ",".join(methods), "views": 2, "tsne": False}
    run(*configure(folder, tmp_path / "out", **changed))
    for group in load(tmp_path / "out").groups:
        assert group.n == 8
        assert {len(rows.ids) for rows in (group.unknown or {}).values()} == {8}
        assert all((rows["label"] >= 0).all() for rows in group.seeds.values())
    table = unknown_table(tmp_path / "out")
    found = [(record["method"], record["score"]) for record in table.records]
    assert sorted(found) == sorted((method, score) for method in methods for score in SCORES)
    for record in table.records:
        assert record["auroc_low"] <= record["auroc"] <= record["auroc_high"]
    shown = CliRunner().invoke(app, ["bench", "unknown", str(tmp_path / "out"), "--format", "csv"])
    assert "fpr95" in shown.output


def test_the_best_logit_minus_the_mean_one_is_read_off_probabilities():
    logits = np.random.default_rng(0).normal(0, 5, (20, 6))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = SCORES["best - mean logit"](SimpleNamespace(probs=probs))
    np.testing.assert_allclose(found, logits.max(1) - logits.mean(1), rtol=1e-9)


def test_auroc_and_fpr95_equal_those_of_scikit_learn():
    numbers = np.random.default_rng(0)
    for decimals in (1, 3):  # with ties, and nearly without
        known = numbers.random(300) < 0.6
        score = np.round(numbers.normal(known, 1.0), decimals)
        assert outside_auroc(score, known) == pytest.approx(roc_auc_score(known, score), abs=1e-12)
        accepted, share, _ = (
            roc_curve(known, score, drop_intermediate=False)[1],
            *roc_curve(known, score, drop_intermediate=False)[:2],
        )
        expected = share[np.argmax(accepted >= 0.95 - 1e-12)]
        assert fpr95(score, known) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(InvalidOptionError, match="Both kinds"):
        fpr95([1.0, 2.0], [True, True])
