"""The help of every command is readable in 80 columns, and options of one name are alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.core import TyperOption
from typer.testing import CliRunner

from poise.cli.app import app
from poise.cli.typer_app import GROUPS, option_name


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, part in getattr(command, "commands", {}).items():
        yield from commands(part, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
WITH_IMAGES = [("classify",), ("calibrate",), ("bench", "run"), ("fit", "coop"), ("fit", "fpp"), ("fit", "stats")]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_nothing_is_cut_off(path: tuple[str, ...]) -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*path, "--help"])
    assert shown.exit_code == 0
    assert "…" not in shown.output
    assert max(map(len, shown.output.splitlines())) <= 80
    words = shown.output.split()
    for option in COMMANDS[path].params:
        if isinstance(option, TyperOption):
            assert option.opts[-1].rstrip(",") in [word.rstrip(",") for word in words], option.opts
    assert shown.output.count("env var:") <= 1  # --threads, whose variable is that of all commands


def test_one_sentence_names_the_variables() -> None:
    shown = CliRunner().invoke(app, ["classify", "--help"])
    assert "POISE_CLASSIFY_LABELS is --labels." in " ".join(shown.output.split())


def test_a_list_of_commands_has_whole_sentences() -> None:
    shown = CliRunner().invoke(app, ["export", "--help"])
    assert "image tower, labels, method and calibration." in " ".join(shown.output.split())


@pytest.mark.parametrize("path", WITH_IMAGES, ids=" ".join)
def test_long_work_can_be_quiet_or_verbose(path: tuple[str, ...]) -> None:
    names = {name for option in COMMANDS[path].params for name in option.opts}
    assert {"--quiet", "--verbose", "--threads", "--device", "--dtype"} <= names


@pytest.mark.parametrize("name", ["--model", "--device", "--address", "--actors", "--threads", "--quiet", "--verbose"])
def test_options_of_one_name_have_one_description(name: str) -> None:
    found = {
        path: option.help
        for path, command in COMMANDS.items()
        for option in command.params
        if name in option.opts and path[0] != "convert"
    }
    assert len(found) > 1
    assert len(set(found.values())) == 1, found


def test_a_variable_has_the_name_of_its_option() -> None:
    shown = CliRunner().invoke(app, ["list", "models"], env={"POISE_LIST_FILTER": "random weights"}).stdout
    assert "tiny" in shown
    assert "pocket" not in shown


def test_many_options_are_in_groups() -> None:
    shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, ["classify", "--help"]).output
    groups = [line.rstrip(":") for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Arguments", *list(GROUPS)[:4], "Where and how it runs", "Options"]
    assert shown.index("Model and method:") < shown.index("--views") < shown.index("Confidence and guarantees:")
    assert "Output:" not in CliRunner().invoke(app, ["bench", "table", "--help"]).output


def test_every_option_of_a_group_exists() -> None:
    known = {option_name(option) for command in COMMANDS.values() for option in command.params}
    assert {name for names in GROUPS.values() for name in names} <= known
