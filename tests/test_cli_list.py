"""`poise list`: the kinds, and tables that fit a terminal."""

from __future__ import annotations

from typer.testing import CliRunner

from poise.cli.app import app
from poise.cli.commands.listing import LISTS
from poise.report.tables.formats import terminal


def test_a_list_without_a_kind_lists_the_kinds() -> None:
    shown = CliRunner().invoke(app, ["list"]).stdout.splitlines()
    assert [line.split()[0] for line in shown[2 : 2 + len(LISTS)]] == list(LISTS)
    assert CliRunner().invoke(app, ["list", "--filter", "no such thing"]).exit_code != 0


def test_the_list_of_methods_fits_a_terminal_of_80_columns() -> None:
    lines = terminal([LISTS["methods"][0]()], width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(" 16+text " in line for line in lines)
