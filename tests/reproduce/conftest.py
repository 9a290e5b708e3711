"""A made table and its data, once for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from poise.data import catalog
from poise.evaluate.run import run
from poise.evaluate.storage import header
from poise.report.published import paper
from poise.report.records.runs import load
from poise.reproduce import plans
from poise.reproduce.gate import checks, gate_config
from poise.reproduce.plans import plan
from poise.reproduce.reproduce import reproduce
from tests.reproduce import made


class Made:
    """The made table on disk, and how to run it."""

    def __init__(self, root: Any) -> None:
        self.root, self.data = root, root / "data"
        self.model = made.save_model(root / "quick")
        self.labels = made.save_images(self.data, self.model)
        made.save_split(self.data, self.labels)
        self.config = root / "made.toml"
        self.config.write_text(made.CONFIG)
        self.truth: dict[str, float] = {}
        self.said: list[str] = []
        self.done: Any = None

    def copy(self, target: Any) -> Any:
        return shutil.copytree(self.data, target / "data")

    def plan(self, out: Any, **changes: Any) -> plans.Plan:
        quick = changes.pop("quick", False)
        fixed = {"model": f"local-dir:{self.model}", "data": str(self.data), "out": str(out), "device": "cpu"}
        return plan(made.NAME, {**fixed, **changes}, quick=quick)

    def run(self, out: Any, *, gate: bool = True, partial_data: bool = False, say: Any = None, **changes: Any) -> Any:
        options = {"gate": gate, "partial": partial_data, "time": say is not None, "say": say or (lambda text: None)}
        return reproduce(self.plan(out, **changes), partial(run, quiet=True), **options)


@contextmanager
def registered(patch: pytest.MonkeyPatch, table: Made) -> Iterator[None]:
    """Make the made dataset and its layout known."""
    patch.setattr(plans, "LAYOUTS", {**plans.LAYOUTS, made.NAME: made.LAYOUT})
    patch.setattr(plans, "config_file", lambda name: table.config)
    catalog.register(made.row())
    yield
    catalog.datasets.remove(made.NAME)


@pytest.fixture(scope="session")
def made_once(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header, "commit", lambda: "0")
        table = Made(tmp_path_factory.mktemp("made"))
        with registered(patch, table):
            (config,) = table.plan(table.root / "truth").runs
            folder = run(gate_config(config), table.plan(table.root / "truth").settings, quiet=True).folder
            patch.setattr(paper, "ROWS", made.published(50, 5))
            (group,) = load(folder).groups
            table.truth = {check.metric: check.measured for check in checks(group)}
            patch.setattr(paper, "ROWS", made.published(table.truth["accuracy"], table.truth["ece"]))
            table.done = table.run(table.root / "runs", say=table.said.append)
    return table


@pytest.fixture
def table(made_once, monkeypatch):
    monkeypatch.setattr(header, "commit", lambda: "0")
    monkeypatch.setattr(paper, "ROWS", made.published(made_once.truth["accuracy"], made_once.truth["ece"]))
    with registered(monkeypatch, made_once):
        yield made_once
