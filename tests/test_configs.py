"""configs/ has a file for each published table and for each of its rows, with the settings of the published code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from poise import methods
from poise.backbones import load_model
from poise.cli.app import app
from poise.cli.commands.reproduce import TABLES as TABLE_COMMANDS
from poise.data import catalog
from poise.evaluate.config import RunConfig, build, read
from poise.evaluate.resolve import check_init, init_kind, is_ordered, make_methods
from poise.inits import maple
from poise.prompts.files import Facts, StoredPrompt, save
from poise.report.published import paper as published
from poise.report.published.peers import PEER_LAYOUTS
from poise.report.tables.block import LAYOUTS
from poise.reproduce.plans import plan
from poise.tuning.frameworks import frameworks

FOLDER = Path(__file__).parent.parent / "configs"
TABLES = sorted(file for file in FOLDER.glob("*.toml") if file.stem in published.LAYOUTS)
ROWS = sorted(FOLDER.glob("*/*.toml"))
FILES = [*TABLES, *ROWS]
SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")


def name_of(file: Path) -> str:
    return str(file.relative_to(FOLDER))


def configs_of(file: Path) -> list[RunConfig]:
    return [build(values)[0] for values in read(file)]


def test_each_published_row_has_one_file() -> None:
    assert {file.stem for file in TABLES} == set(published.LAYOUTS)
    found = []
    for file in ROWS:
        (config,) = configs_of(file)
        assert config.run_id == f"{file.parent.name}-{file.stem}"
        (method,) = config.methods
        found.append((file.parent.name, method, config.framework, init_kind(config)))
    printed = [
        (row.table, row.method, row.framework, row.init)
        for table in published.LAYOUTS
        for row in published.rows(table, metric="ece")
    ]
    assert len(printed) == 25
    assert sorted(found) == sorted(printed)


def test_the_rows_of_a_table_are_that_table() -> None:
    """Rows that were run one by one are reported as the table that was run at once: all but the methods is equal."""
    for table in TABLES:
        whole = {init_kind(config): config for config in configs_of(table)}
        methods_of: dict[str, set[str]] = {kind: set() for kind in whole}
        for file in (FOLDER / table.stem).glob("*.toml"):
            (config,) = configs_of(file)
            kind = init_kind(config)
            methods_of[kind] |= set(config.methods)
            theirs = whole[kind].hashed() | {"methods": list(config.methods)}
            assert config.hashed() == theirs, name_of(file)
        assert methods_of == {kind: set(config.methods) for kind, config in whole.items()}


@pytest.mark.parametrize("table", PEER_LAYOUTS)
def test_the_tables_of_peers_have_all_their_methods(table) -> None:
    runs = configs_of(FOLDER / f"{table}.toml")
    assert sorted(name for config in runs for name in config.methods) == sorted(PEER_LAYOUTS[table].methods)
    assert {config.datasets for config in runs} == {PEER_LAYOUTS[table].datasets}
    assert [is_ordered(config, check_init(config)) for config in runs] == [False, True]


def test_each_table_can_be_reproduced() -> None:
    assert set(TABLE_COMMANDS) == set(LAYOUTS)
    for name in LAYOUTS:
        chosen = plan(name, {"datasets": LAYOUTS[name].datasets[:1]}, quick=True)
        assert {(config.limit, config.datasets) for config in chosen.runs} == {(200, LAYOUTS[name].datasets[:1])}
        assert all(config.run_id.endswith("-quick") for config in chosen.runs)


def test_names_are_unique() -> None:
    names = [config.run_id for file in FILES for config in configs_of(file)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_settings_are_the_published_ones(file) -> None:
    """TPT's protocol (64 views, 10 % of them, one AdamW step) and what the other papers' scripts change of it."""
    table = file.stem if file.parent == FOLDER else file.parent.name
    for config in configs_of(file):
        assert (config.model, config.views, config.seeds) == ("ViT-B-16/openai", 64, (1, 2, 3))
        assert config.limit == 0
        assert config.datasets == published.LAYOUTS[table].datasets
        assert all(catalog.row(name).template == "a photo of a {}." for name in config.datasets)
        assert config.template == ""
        deep = init_kind(config) == "maple"
        assert config.augmix == ("off" if deep else "c-tpt" if table == "table4" else "on")
        for shift in (False, True):
            for method in make_methods(config, shift=shift):
                assert method.steps == (0 if method.name == "zero-shot" else 1)
                assert (method.selection, method.weight_decay) == (0.1, 0.01)
                assert method.lr == (5e-4 if deep else 5e-3)
                assert (method.t_min, method.t_max) == (0.1, 10.0)
                weights = {"c-tpt": [(50, 20)], "o-tpt": [(18, 2)]}.get(method.name, [])
                assert [term.weight for term in method.terms[1:]] == [each[shift] for each in weights]
        expected = {"variant": "as-published", "size": 12} if table == "table3" else {}
        assert config.framework_options == expected
        frameworks.get(config.framework).parse(config.framework_options)


def test_shifts_are_mixed_and_weighted_as_the_scripts_do_it() -> None:
    (config,) = configs_of(FOLDER / "table4.toml")
    assert [name for name in config.datasets if catalog.row(name).shift] == list(SHIFTS)
    assert [name for name in config.datasets if catalog.row(name).augmix_under("c-tpt")] == list(SHIFTS)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_each_file_can_be_shown(file, tmp_path) -> None:
    shown = CliRunner().invoke(app, ["bench", "run", "--config", str(file), "--dry-run", "--device", "cpu"])
    assert shown.exit_code == 3, shown.output  # there are neither images nor weights
    for config in configs_of(file):
        assert f"{config.run_id}  {config.title}" in shown.output
        for name in config.methods:
            settings = {**config.options.get("all", {}), **config.options.get(name, {})}
            assert f"  {name}: {methods.get(name, **settings).describe()}" in shown.output
        needs_file = init_kind(config) in ("coop", "maple")
        assert (f"not there yet: The init '{config.init}'" in shown.output) == needs_file


@pytest.mark.parametrize("file", sorted((FOLDER / "table2").glob("*.toml")), ids=name_of)
def test_a_row_finds_the_init_that_it_is_given(file, tmp_path) -> None:
    (config,) = configs_of(file)
    kind, start = init_kind(config), tmp_path / "start.safetensors"
    encoder = load_model("tiny", device="cpu")
    tensors = {"context": torch.randn(4, 64)}
    facts = Facts(kind=kind, model="tiny", template="X X X X {}.", context="before")
    if kind == "maple":
        coupled = maple.fresh(encoder, ["cat"], tokens=2, depth=2, seed=1)
        tensors = {name: part[0] for name, part in coupled.parts().items()}
        facts = Facts(kind=kind, model="tiny", template=maple.TEMPLATE, context="before", tokens=2)
    save(start, StoredPrompt(tensors, facts))
    asked = ["bench", "run", "--config", str(file), "--dry-run", "--device", "cpu", "--set", f"init={kind}:{start}"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 3, shown.output
    assert f"init = {kind}:{start}" in shown.output
    assert "not there yet" not in shown.output
    with pytest.raises(FileNotFoundError, match=r"nor a file.*poise fit"):
        check_init(config)
