"""Each published table from made data trees to a record that verifies, as a user runs it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from poise.backbones import load_model
from poise.cli.app import app
from poise.evaluate.run import run
from poise.inits import maple
from poise.prompts.files import Facts, StoredPrompt, save
from poise.report.tables.block import LAYOUTS
from poise.reproduce import record as records
from poise.reproduce.comparison import verdicts
from poise.reproduce.plans import plan
from poise.reproduce.reproduce import reproduce
from poise.reproduce.verify import Here, verify
from tests.data import trees

SMALL = {"table4": "imagenet-a", "peers-shifts": "imagenet-r"}  # others: EuroSAT, with ten classes


def prompts(folder: Path) -> dict[str, str]:
    """The files of a prompt of CoOp and one of MaPLe, as `poise fit` writes them."""
    coop, coupled = folder / "coop.safetensors", folder / "maple.safetensors"
    facts = Facts(kind="coop", model="tiny", template="X X X X {}.", context="before")
    save(coop, StoredPrompt({"context": torch.randn(4, 64, generator=torch.Generator().manual_seed(0))}, facts))
    fresh = maple.fresh(load_model("tiny", device="cpu"), ["cat"], tokens=2, depth=2, seed=1)
    tensors = {name: part[0] for name, part in fresh.parts().items()}
    facts = Facts(kind="maple", model="tiny", template=maple.TEMPLATE, context="before", tokens=2)
    save(coupled, StoredPrompt(tensors, facts))
    return {"coop": str(coop), "maple": str(coupled)}


@pytest.mark.parametrize("table", sorted(LAYOUTS))
def test_a_table_on_made_data(table, tmp_path):
    """Two images of one dataset under all methods of the table, with 5 views instead of 64 and one seed."""
    dataset = SMALL.get(table, "eurosat")
    trees.build(dataset, tmp_path / "data")
    inits = prompts(tmp_path) if table == "table2" else {}
    less = {"limit": 2, "views": 5, "seeds": [1], "model": "tiny", "device": "cpu", "datasets": [dataset]}
    chosen = plan(table, {**less, "data": str(tmp_path / "data"), "out": str(tmp_path / "runs"), "init": inits})
    done = reproduce(chosen, partial(run, quiet=True), gate=False, partial=True, time=False)
    record = records.read(done.file)
    assert {name for one in record["runs"].values() for name in one["methods"]} == set(LAYOUTS[table].methods)
    assert {cell["verdict"] for cell in verdicts(record)} <= {"not comparable"}  # it is another model
    assert bool(verdicts(record)) == (table != "table5")  # which prints averages over ten datasets only
    found = verify(record, Here(str(tmp_path / "data"), device="cpu", init=inits), runs=tmp_path / "runs")
    assert found.verified, found.problems


def test_the_command_of_a_table_refuses_data_that_are_not_the_published_ones(tmp_path):
    asked = ["reproduce", "table1", "--data", str(tmp_path), "--out", str(tmp_path / "runs"), "--model", "tiny"]
    absent = CliRunner().invoke(app, asked)
    assert "10 datasets can't be used. aircraft: absent" in str(absent.exception)
    trees.build("eurosat", tmp_path)
    fewer = CliRunner().invoke(app, [*asked, "--dataset", "eurosat"])
    assert "eurosat: partial" in str(fewer.exception)
    assert "--partial" in fewer.exception.hint
    assert not (tmp_path / "runs").exists()
