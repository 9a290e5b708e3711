"""Whole runs under other engines, frameworks, inits and view engines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from poise.backbones import load_model
from poise.errors import InvalidLabelsError, InvalidOptionError, UnknownNameError
from poise.evaluate import resolve
from poise.evaluate.engines import LocalEngine, Watch, engines
from poise.evaluate.run import run
from poise.prompts import files as store
from poise.prompts import tokenise
from tests.evaluate.small_run import configure, rows_of

pytestmark = pytest.mark.usefixtures("one_commit")


@engines.add("backwards")
class Backwards(LocalEngine):
    """The last unit first."""

    def run(self, units, watch: Watch):
        yield from reversed(list(super().run(units, watch)))


def test_an_engine_may_finish_units_in_any_order(clean, image_folder, tmp_path):
    run(*configure(image_folder, tmp_path, engine="backwards"))
    for file in (clean / "run").rglob("*.parquet"):
        assert file.read_bytes() == (tmp_path / "run" / file.relative_to(clean / "run")).read_bytes()


def test_classes_may_share_a_name():
    encoder = load_model("tiny", device="cpu")
    labels = ("missile", "sea_lion", "missile", "sea lion")
    classes = tokenise(encoder, labels, repeats=True)
    assert classes.labels == labels
    alone = tokenise(encoder, ("missile", "sea lion"))
    for own, expected in ((classes.ids, alone.ids), (classes.lengths, alone.lengths), (classes.slots, alone.slots)):
        assert torch.equal(own, expected[[0, 1, 0, 1]])


def test_runs_have_the_options_of_a_classifier(image_folder, tmp_path):
    long = tmp_path / "images" / " ".join(["a"] * 100)
    long.parent.mkdir()
    long.symlink_to(image_folder / "class0")
    (long.parent / "short").symlink_to(image_folder / "class1")
    quick = {"methods": "zero-shot", "seeds": "1", "tsne": False}
    with pytest.raises(InvalidLabelsError, match="a a a"):
        run(*configure(long.parent, tmp_path, **quick))
    with pytest.warns(UserWarning, match="a a a"):
        summary = run(*configure(long.parent, tmp_path, **quick, on_long_label="truncate", name="cut"))
    assert (summary.images, summary.errors) == (6, 0)
    with pytest.raises(InvalidOptionError, match="logit scale of its own"):
        run(*configure(image_folder, tmp_path, **quick, logit_scale=20, name="scaled"))
    with pytest.raises(UnknownNameError, match="truncate"):
        configure(image_folder, tmp_path, on_long_label="cut")
    with pytest.raises(InvalidOptionError, match="of type float"):
        configure(image_folder, tmp_path, logit_scale="large")


@pytest.mark.parametrize("framework", ["dynaprompt", "ensemble"])
def test_other_frameworks_run(image_folder, tmp_path, clean, framework):
    config, settings = configure(image_folder, tmp_path, framework=framework, methods="zero-shot,kld+cats")
    summary = run(config, settings)
    assert (summary.images, summary.errors) == (18, 0)
    assert summary.units == (2 if framework == "dynaprompt" else 6)  # an ordered stream is one unit for each seed
    ours, plain = rows_of(tmp_path), rows_of(clean)
    assert set(ours) == {key for key in plain if key[2] != "c-tpt"}
    tuned = [key for key in ours if key[2] == "kld+cats"]
    assert any(ours[key]["confidence"] != plain[key]["confidence"] for key in tuned)
    again = tmp_path / "again"
    run(*configure(image_folder, again, framework=framework, methods="zero-shot,kld+cats"))
    assert rows_of(again) == ours


def test_a_run_starts_from_a_fitted_prompt(image_folder, tmp_path, clean):
    encoder = load_model("tiny", device="cpu")
    context = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    facts = store.Facts(kind="coop", model=encoder.name, template="a photo of a {}.")
    store.save(tmp_path / "prompt.safetensors", store.StoredPrompt({"context": context}, facts))
    run(*configure(image_folder, tmp_path, init=f"coop:{tmp_path / 'prompt.safetensors'}"))
    ours, plain = rows_of(tmp_path), rows_of(clean)
    assert all(ours[key]["init_confidence"] != plain[key]["init_confidence"] for key in ours)


def test_weights_for_shifted_data_unless_given():
    config, _ = configure("x", "y")
    assert [each.terms[1].weight for each in resolve.make_methods(config) if len(each.terms) > 1] == [50]
    assert [each.terms[1].weight for each in resolve.make_methods(config, shift=True) if len(each.terms) > 1] == [20]
    given, _ = configure("x", "y", options={"c-tpt": {"weight": 7.0}, "all": {"lr": 0.1}})
    assert [each.terms[1].weight for each in resolve.make_methods(given, shift=True) if len(each.terms) > 1] == [7]
    assert {method.lr for method in resolve.make_methods(given)} == {0.1}
    wrong, _ = configure("x", "y", options={"ctpt": {}})
    with pytest.raises(UnknownNameError, match="method"):
        resolve.make_methods(wrong)


def test_both_view_engines_give_nearly_the_same_answers(clean, image_folder, tmp_path):
    run(*configure(image_folder, tmp_path, view_engine="pil", seeds="1"))
    expected = rows_of(clean)
    for key, row in rows_of(tmp_path).items():
        assert row["init_confidence"] == pytest.approx(expected[key]["init_confidence"], abs=1e-5)
        np.testing.assert_allclose(row["probs"], expected[key]["probs"], atol=0.02)
