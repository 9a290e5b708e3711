"""Every file in configs/ loads, names things that exist, and says what the published tables say."""

from __future__ import annotations

from pathlib import Path

import pytest

from poise import methods
from poise.data import catalog
from poise.evaluate.config import build, read

FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.toml"))
RUNS = [(file.stem, values) for file in FILES for values in read(file)]


def test_there_is_a_file_for_each_published_table():
    assert {"table1", "table2", "table3", "table4", "table5"} <= {file.stem for file in FILES}


@pytest.mark.parametrize(("stem", "values"), RUNS, ids=[str(values["name"]) for _, values in RUNS])
def test_each_run_loads_and_names_what_exists(stem, values):
    config, _ = build(values)
    assert config.run_id.startswith(stem)
    assert config.title
    assert set(config.methods) <= set(methods.names())
    for name in config.datasets:
        catalog.row(name)
    for options in config.options.values():
        for method in config.methods:
            methods.get(method, **options)
    assert config.seeds == (1, 2, 3)
    assert config.views == 64


def test_names_are_unique():
    names = [values["name"] for _, values in RUNS]
    assert len(set(names)) == len(names)
