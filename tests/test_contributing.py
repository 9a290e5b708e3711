"""CONTRIBUTING's recipes, run and linted as printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from poise import methods, metrics
from poise.backbones.load import models
from poise.data import catalog, open_dataset
from poise.objectives import objectives
from poise.posthoc import posthoc
from poise.rules import rules
from poise.storage import hash_names

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(# [^\n]+\n.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.S)


@pytest.fixture(scope="module")
def recipes() -> Iterator[dict[str, ModuleType]]:
    """Each block as a module, executed in the order of the page, and its rows forgotten afterwards."""
    done = {}
    for number, block in enumerate(BLOCKS):
        module = ModuleType(f"recipe_{number}")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        exec(compile(block, module.__name__, "exec"), module.__dict__)
        done[block.partition("\n")[0].removeprefix("# ")] = module
    yield done
    objectives.remove("agreement")
    rules.remove("mean-logits")
    posthoc.remove("halved")
    methods.unregister("kld+agreement")
    metrics.unregister("overconfidence")
    models.remove("mine")
    del catalog.ROWS["beans"]
    for number in range(len(BLOCKS)):
        del sys.modules[f"recipe_{number}"]


def test_the_recipes_own_tests_pass(recipes: dict[str, ModuleType]) -> None:
    tests = [value for module in recipes.values() for name, value in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 5
    for test in tests:
        test()


def test_the_method_builds_its_objective(recipes: dict[str, ModuleType]) -> None:
    method = methods.get("kld+agreement")
    assert "divergence + 0.5 x agreement" in method.describe()
    assert method.name in methods.names()


def test_the_metric_is_a_row(recipes: dict[str, ModuleType]) -> None:
    sample = metrics.Sample.of_top([0.9, 0.7], [True, False])
    assert metrics.get("overconfidence").value(sample) == pytest.approx(0.3)


def test_the_dataset_opens(recipes: dict[str, ModuleType], tmp_path: Path) -> None:
    names, folder = ["healthy", "bean rust"], tmp_path / "beans" / "images"
    assert catalog.row("beans").class_hash == hash_names(names)
    folder.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(folder / name)
    entries = [["a.png", 0, names[0]], ["b.png", 1, names[1]]]
    (tmp_path / "beans" / "split_beans.json").write_text(json.dumps({"train": [], "val": [], "test": entries}))
    images = open_dataset("beans", tmp_path)
    assert images.classes == tuple(names)
    assert [item.label for item in images.items] == [0, 1]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.partition("\n")[0].removeprefix("# "))
def test_the_recipes_pass_the_linter(block: str) -> None:
    pytest.importorskip("ruff", reason="install the 'dev' extra")
    path = block.partition("\n")[0].removeprefix("# ")
    file = "tests/row.py" if path.startswith("a row") else path  # a row's file has its docstring
    for command in (["check", "--ignore=INP001"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", file, "-"],
            cwd=ROOT, input=block.partition("\n")[2], capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{file}: {done.stdout}{done.stderr}"
