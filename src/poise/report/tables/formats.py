"""Tables as text: one registry row per format, each of which renders the same `Table`."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from poise.registry import Registry
from poise.report.html import rendered
from poise.report.tables.table import Cell, Line, Table, Tone
from poise.text import printable, safe_cell

BEST = "†"  # marks the best where text has no bold
WHOLE = 4096  # characters of a line that is not wrapped
_TONES: dict[Tone, str] = {"": "", "good": "green", "doubtful": "yellow", "bad": "red"}


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """A text format for tables."""

    name: str
    about: str
    render: Callable[[Sequence[Table]], str]


formats = Registry[TableFormat]("table format", of=TableFormat)


def render(tables: Sequence[Table], format: str = "terminal", *, colour: bool = False) -> str:
    """Return the tables as text in the format called ``format``; ``colour`` is for terminals, whose width is used."""
    row = formats.get(format)
    return on_screen(tables) if colour and row.name == "terminal" else row.render(tables)


def on_screen(tables: Sequence[Table]) -> str:
    """Return the tables for the terminal that this process has: in colour, and not wider than it is."""
    return terminal(tables, colour=True, width=shutil.get_terminal_size().columns)


def terminal(tables: Sequence[Table], *, colour: bool = False, width: int = WHOLE) -> str:
    """Return aligned text. In colour the best is bold and published rows are dim; without, the best has a mark.

    Texts and notes are wrapped between words so that lines have at most ``width`` characters, and dispensable columns
    are left out where there is no room. Words and numbers are never broken: a table whose longest ones need more is
    wider. The default width keeps rows whole for pipes.
    """
    sink = io.StringIO()
    console = Console(
        file=sink, width=WHOLE, force_terminal=colour, no_color=not colour, highlight=False, legacy_windows=False
    )
    for table in tables:
        while table.dispensable and _comfortable(table, colour) > width:
            table = table.without(table.dispensable[0])
        if table.title:
            console.print(Text(printable(table.title), style="bold"), width=width)
        if table.lines:
            console.print(_grid(table, colour, width))
        for note in table.notes:
            console.print(Padding(Text(printable(note)), (0, 0, 0, 2)), width=width)
        console.print()
    return "\n".join(text.rstrip() for text in sink.getvalue().rstrip("\n").split("\n")) + "\n"


_GAP = 3  # characters between two columns


def _limits(table: Table, colour: bool) -> list[tuple[int, int]]:
    """Return the least and the most characters that each column needs, with the gap before it.

    The least is its longest word, and its longest cell if it has numbers, whose headings alone are wrapped.
    """
    found = []
    for at, column in enumerate(table.columns):
        cells = [_terminal_cell(line.cells[at], line, colour, not table.is_text(at)).plain for line in table.lines]
        heading, gap = printable(column), _GAP * (at > 0)
        words = [word for cell in cells for word in cell.split()] if table.is_text(at) else cells
        least = max(map(cell_len, [*words, *heading.split()]), default=0)
        found.append((gap + least, gap + max(map(cell_len, [*cells, heading]))))
    return found


def _comfortable(table: Table, colour: bool) -> int:
    """Return the characters of a line in which headings of numbers are wrapped, and texts are not."""
    return sum(most if table.is_text(at) else least for at, (least, most) in enumerate(_limits(table, colour)))


def _grid(table: Table, colour: bool, width: int) -> RichTable:
    """Return the table; columns that can be narrower share what is too much for ``width``."""
    limits = _limits(table, colour)
    excess, slack = sum(most for _, most in limits) - width, sum(most - least for least, most in limits)
    share = min(1.0, max(0.0, excess / slack)) if slack else 0.0
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold" if colour else "")
    for at, (column, (least, most)) in enumerate(zip(table.columns, limits, strict=True)):
        justify: Literal["left", "right"] = "left" if table.is_text(at) else "right"
        characters = most - math.ceil(share * (most - least)) - _GAP * (at > 0)
        grid.add_column(Text(printable(column)), justify=justify, width=characters)
    for line, rule in _ruled(table):
        if rule:
            grid.add_section()
        grid.add_row(*(_terminal_cell(cell, line, colour, not table.is_text(at)) for at, cell in enumerate(line.cells)))
    return grid


def _terminal_cell(cell: Cell, line: Line, colour: bool, padded: bool) -> Text:
    text = printable(str(cell))
    if not colour and padded:
        text += BEST if cell.best else " "
    return Text(text, style=_TONES[cell.tone] or ("bold" if cell.best else "dim" if line.quiet else ""))


def _ruled(table: Table) -> Iterator[tuple[Line, bool]]:
    """Yield each line, and whether a rule separates it from the line before."""
    for at, line in enumerate(table.lines):
        yield line, at > 0 and line.section != table.lines[at - 1].section


def markdown(tables: Sequence[Table]) -> str:
    """Return Markdown tables as GitHub shows them; published rows are in italics."""
    out = []
    for table in tables:
        out += [f"### {_pipe(table.title)}", ""] if table.title else []
        out.append("| " + " | ".join(map(_pipe, table.columns)) + " |")
        out.append("|" + "".join("---|" if table.is_text(at) else "---:|" for at in range(len(table.columns))))
        for line in table.lines:
            wrap = "*{}*" if line.quiet else "{}"
            cells = [
                wrap.format(f"**{_pipe(str(cell).strip())}**" if cell.best else _pipe(str(cell).strip()))
                for cell in line.cells
            ]
            out.append("| " + " | ".join(cell if cell.strip("*") else "" for cell in cells) + " |")
        out += ["", *(f"- {_pipe(note)}" for note in table.notes), ""]
    return "\n".join(out)


def _pipe(text: str) -> str:
    return printable(text).replace("|", "\\|")


def latex(tables: Sequence[Table]) -> str:
    r"""Return one LaTeX ``table`` each; needs \usepackage{booktabs}."""
    out = []
    for table in tables:
        out += ["\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(table.title)}. {_tex(' '.join(table.notes))}}}"]
        aligned = "".join("l" if table.is_text(at) else "r" for at in range(len(table.columns)))
        out += [f"\\begin{{tabular}}{{{aligned}}}", "\\toprule"]
        out += [" & ".join(map(_tex, table.columns)) + " \\\\", "\\midrule"]
        for line, rule in _ruled(table):
            cells = [f"\\textbf{{{_tex(str(cell))}}}" if cell.best else _tex(str(cell)) for cell in line.cells]
            out += ["\\midrule"] * rule + [" & ".join(cells) + " \\\\"]
        out += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(out)


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "—": "--",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in printable(text))


def html(tables: Sequence[Table]) -> str:
    """Return HTML ``table`` elements with their notes, without a page around them; every text is escaped.

    Each row and column has a header cell for screen readers, and a table that is wider than the window is scrolled
    with the keyboard too.
    """
    with_kinds = [
        (table, [(line, " ".join(["rule"] * rule + ["quiet"] * line.quiet)) for line, rule in _ruled(table)])
        for table in tables
    ]
    return str(rendered("table.html", tables=with_kinds).strip())


def comma_separated(tables: Sequence[Table]) -> str:
    """Return the records of all tables, one row each, numbers in the unit in which tables show them."""
    records = [record for table in tables for record in table.records]
    columns = list(dict.fromkeys(name for record in records for name in record))
    sink = io.StringIO()
    writer = csv.DictWriter(sink, columns, lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({name: safe_cell(value) for name, value in record.items()})
    return sink.getvalue()


def json_text(tables: Sequence[Table]) -> str:
    """Return a JSON list with title, notes and records of each table."""
    content = [{"title": table.title, "notes": table.notes, "rows": table.records} for table in tables]
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


for _row in (
    TableFormat(name="terminal", about="aligned text, in colour on a terminal", render=terminal),
    TableFormat(name="md", about="Markdown, as GitHub shows it", render=markdown),
    TableFormat(name="latex", about="LaTeX with booktabs", render=latex),
    TableFormat(name="csv", about="one row per number, with interval and standard deviation", render=comma_separated),
    TableFormat(name="json", about="the same as a list of records, with the notes", render=json_text),
    TableFormat(name="html", about="HTML tables without a page around them", render=html),
):
    formats.add(_row.name)(_row)
