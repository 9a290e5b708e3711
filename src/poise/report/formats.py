"""Tables as text: terminal, Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from poise.report.scores import TITLES
from poise.report.tables import OURS, PUBLISHED, Cell, Line, Table, printed
from poise.storage import safe_cell

DASH = "—"
LEGEND = "Best: **bold**, second: <u>underlined</u>, of ours."


def number(cell: Cell, metric: str, intervals: bool = False) -> str:
    """A cell without marks: ``65.71`` or ``65.71 [64.9, 66.5]``."""
    if cell.value is None:
        return DASH
    text = printed(cell.value, metric)
    if intervals and cell.low is not None and cell.high is not None:
        text += f" [{printed(cell.low, metric)}, {printed(cell.high, metric)}]"
    return text


def terminal(tables: Sequence[Table], intervals: bool = False, colour: bool = False) -> str:
    """Aligned text. In colour the best is bold and the second underlined; without, they carry * and +."""
    return "\n\n".join(_terminal(table, intervals, colour) for table in tables) + "\n"


def _terminal(table: Table, intervals: bool, colour: bool) -> str:
    suffix = {0: "", 1: "*", 2: "+"}
    grid = [["Method", "Metric", *table.columns]]
    for line in table.lines:
        cells = [number(cell, line.metric, intervals) + ("" if colour else suffix[cell.rank]) for cell in line.cells]
        grid.append([_label(line), TITLES[line.metric], *cells])
    widths = [max(len(row[at]) for row in grid) for at in range(len(grid[0]))]
    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    out = [_style(table.title, "1", colour), rule, _aligned(grid[0], widths), rule]
    before = ""
    for line, row in zip(table.lines, grid[1:], strict=True):
        if before and line.method != before:
            out.append("")
        before = line.method
        if line.origin == PUBLISHED:
            out.append(_style(_aligned(row, widths), "2", colour))
        else:
            out.append(_aligned(row, widths, [cell.rank for cell in line.cells] if colour else None))
    legend = "best bold, second underlined" if colour else "* best, + second"
    return "\n".join([*out, rule, *(f"  {note}" for note in (*table.notes, f"Marks ({legend}) compare our own rows."))])


def _label(line: Line) -> str:
    return line.label if line.origin == OURS else f"  published: {line.label}"


def _aligned(row: Sequence[str], widths: Sequence[int], ranks: Sequence[int] | None = None) -> str:
    codes = {0: "", 1: "1", 2: "4"}
    parts = []
    for at, (text, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - len(text))
        if at < 2:
            parts.append(text + padding)
        else:
            code = codes[ranks[at - 2]] if ranks else ""
            parts.append(padding + _style(text, code, bool(code)))
    return "  ".join(parts).rstrip()


def _style(text: str, code: str, on: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if on else text


def markdown(tables: Sequence[Table], intervals: bool = False, colour: bool = False) -> str:
    """GitHub tables; the published rows are in italics."""
    return "\n".join(_markdown(table, intervals) for table in tables)


def _markdown(table: Table, intervals: bool) -> str:
    head = ["Method", "Metric", *table.columns]
    out = [f"### {_pipe(table.title)}", "", "| " + " | ".join(map(_pipe, head)) + " |"]
    out.append("|---|---|" + "---:|" * len(table.columns))
    wrap = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    for line in table.lines:
        cells = [wrap[cell.rank].format(number(cell, line.metric, intervals)) for cell in line.cells]
        label = _pipe(line.label) if line.origin == OURS else f"*published: {_pipe(line.label)}*"
        if line.origin == PUBLISHED:
            cells = [f"*{cell}*" for cell in cells]
        out.append("| " + " | ".join([label, TITLES[line.metric], *cells]) + " |")
    return "\n".join([*out, "", *(f"- {_pipe(note)}" for note in (*table.notes, LEGEND)), ""])


def _pipe(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def latex(tables: Sequence[Table], intervals: bool = False, colour: bool = False) -> str:
    r"""A booktabs ``table`` each; needs \usepackage{booktabs}."""
    return "\n".join(_latex(table, intervals) for table in tables)


def _latex(table: Table, intervals: bool) -> str:
    wrap = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}
    out = ["\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(table.title)}. {_tex(' '.join(table.notes))}}}"]
    out += [f"\\begin{{tabular}}{{ll{'r' * len(table.columns)}}}", "\\toprule"]
    out += [" & ".join(map(_tex, ["Method", "Metric", *table.columns])) + " \\\\", "\\midrule"]
    before = ""
    for line in table.lines:
        if before and line.method != before:
            out.append("\\midrule")
        before = line.method
        cells = [wrap[cell.rank].format(_tex(number(cell, line.metric, intervals))) for cell in line.cells]
        label = _tex(line.label) if line.origin == OURS else f"\\quad published: {_tex(line.label)}"
        out.append(" & ".join([label, _tex(TITLES[line.metric]), *cells]) + " \\\\")
    return "\n".join([*out, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "—": "--", "±": r"$\pm$",
}  # fmt: skip


def _tex(text: str) -> str:
    return "".join(_TEX.get(character, character) for character in text)


_COLUMNS = (
    "table", "model", "origin", "method", "metric", "column", "dataset", "value", "low", "high", "rank", "source",
)  # fmt: skip


def comma_separated(tables: Sequence[Table], intervals: bool = False, colour: bool = False) -> str:
    """One row a number, always with its interval; the unit is the printed one."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for table in tables:
        for line in table.lines:
            for column, dataset, cell in zip(table.columns, table.datasets, line.cells, strict=True):
                if cell.value is not None:
                    model = table.model if line.origin == OURS else "CLIP ViT-B/16"
                    row = (table.title, model, line.origin, line.method, line.metric, column, dataset, cell.value,
                           cell.low, cell.high, cell.rank or "", line.source)  # fmt: skip
                    writer.writerow([safe_cell("" if value is None else value) for value in row])
    return sink.getvalue()


FORMATS: dict[str, Callable[[Sequence[Table], bool, bool], str]] = {
    "terminal": terminal,
    "md": markdown,
    "latex": latex,
    "csv": comma_separated,
}
