"""Rows that others register: what no run could use is refused when it is added, or before a run begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from typer.testing import CliRunner

import poise
from poise import data, methods, metrics
from poise.backbones.load import ModelRow, models
from poise.cli.app import app
from poise.data.catalog import datasets
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.methods import About, Method, Term
from poise.objectives import objectives
from poise.posthoc import posthoc
from poise.registry import Registry
from poise.rules import rules
from poise.types import Objective, Outputs

METRIC = {"title": "A", "about": "A metric.", "value": lambda sample: 0.5}


class Disagreement:
    """A loss of the outputs, without the base class."""

    def __call__(self, out: Outputs) -> Tensor:
        return out.logits.std(1).mean(-1)


@dataclass(frozen=True)
class Scaled(Objective):
    """A loss with a parameter that has no default."""

    factor: float

    def __call__(self, out: Outputs) -> Tensor:
        return self.factor * Disagreement()(out)


class Unfinished(Objective):
    """A class without the loss."""


@pytest.mark.parametrize(
    ("add", "reason"),
    [
        (lambda: objectives.add("a")(Disagreement), "the class Disagreement.*Derive its class from poise.types.Object"),
        (lambda: objectives.add("a")(Unfinished), "The objective 'a' has no __call__"),
        (lambda: rules.add("a")(Disagreement), "Derive its class from poise.rules.rule.Rule"),
        (lambda: posthoc.add("a")(Disagreement), "Derive its class from poise.posthoc.steps.PostHoc"),
        (lambda: methods.methods.add("a")("tpt"), "of the type str. Register a poise.methods.method.Method"),
        (lambda: methods.register(Method(name="a", terms=("entropy",))), "'terms' of the method 'a'.*tuple of Term"),
        (lambda: About(colour="bluish"), "The colour is 'bluish'"),
        (lambda: About(dash="dotted"), "The dash is 'dotted'"),
        (lambda: metrics.register(metrics.Metric(name="a", needs="nothing", **METRIC)), "'needs' of the metric 'a'"),
        (lambda: metrics.register(metrics.Metric(name="a,b", **METRIC)), "The name of the metric is 'a,b'"),
        (
            lambda: metrics.register(metrics.Metric(name="a", **{**METRIC, "value": 3})),
            "'value' of the metric 'a' is 3",
        ),
        (lambda: models.add("a")(lambda name, place: None), "Register a poise.backbones.load.ModelRow"),
        (lambda: data.readers.add("a")("csv"), "The reader of datasets 'a' is of the type str"),
    ],
)
def test_what_is_no_such_row_is_refused_when_it_is_added(add: Callable[[], Any], reason: str) -> None:
    with pytest.raises(InvalidOptionError, match=reason):
        add()


@pytest.fixture
def added() -> Iterator[Callable[[Registry[Any], str, Any], None]]:
    """Adds entries of registries, and removes them after the test."""
    done: list[tuple[Registry[Any], str]] = []

    def add(registry: Registry[Any], name: str, entry: Any) -> None:
        registry.add(name)(entry)
        done.append((registry, name))

    yield add
    for registry, name in done:
        registry.remove(name)


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (lambda: Disagreement(), "'loss' is of the type Disagreement, which is no Objective"),
        (lambda out: out.logits.sum(), "needs the option 'out', which has no default.*or a function that returns"),
        (Scaled, "needs the option 'factor', which has no default. Give it: loss.factor"),
    ],
)
def test_a_term_that_cannot_be_made_leaves_no_run_folder(
    entry: Any, reason: str, added: Callable[..., None], tmp_path: Path
) -> None:
    added(objectives, "loss", entry)
    added(methods.methods, "own-loss", Method(name="own-loss", terms=(Term("loss"),)))
    with pytest.raises(InvalidOptionError, match=reason):
        poise.Classifier(["cat", "dog"], model="tiny", method="own-loss", device="cpu")
    options = ["--model", "tiny", "--dataset", "samples", "--method", "own-loss", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, ["bench", "run", *options])
    assert isinstance(done.exception, InvalidOptionError), done.output
    assert not (tmp_path / "run").exists()


def test_a_list_does_for_a_tuple_and_given_options_for_defaults(added: Callable[..., None]) -> None:
    added(objectives, "loss", Scaled)
    added(methods.methods, "own-loss", Method(name="own-loss", terms=[Term("loss"), Term("entropy")]))  # type: ignore[arg-type]
    (_, loss), _ = methods.get("own-loss", loss={"factor": 2.0}).objective().terms
    assert loss == Scaled(2.0)


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        ([1], r"The reader 'own' of the dataset 'own' returned \[1\]"),
        ((("a",), ["x.png"], "own", Path()), "a list of poise.data.Item"),
        ((("a",), [data.Item("x.png", 1, "x.png")], "own", Path()), "'x.png' of the dataset 'own' has the label 1"),
    ],
)
def test_a_reader_that_returns_no_dataset_is_named(
    read: Any, reason: str, added: Callable[..., None], tmp_path: Path
) -> None:
    added(data.readers, "own", lambda row, root, split: read)
    facts = {"title": "Own", "heading": "Own", "classes": 1, "images": 1, "licence": "", "get": ""}
    added(datasets, "own", data.DatasetRow(name="own", reader="own", places=(), **facts))
    with pytest.raises(InvalidDatasetError, match=reason):
        data.open_dataset("own", tmp_path)


def test_a_model_that_is_no_encoder_is_refused(added: Callable[..., None]) -> None:
    added(models, "own-model", ModelRow("own-model", "no model", lambda name, place: None))
    with pytest.raises(InvalidOptionError, match="The model 'own-model' is of the type NoneType, which has no name, "):
        poise.load_model("own-model", device="cpu")
    with pytest.raises(InvalidOptionError, match=r"an object with all members of poise.types.DualEncoder"):
        poise.Classifier(["cat", "dog"], model=object())  # type: ignore[arg-type]
