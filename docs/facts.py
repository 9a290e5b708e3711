"""Facts of the pages that are read off the registries and the tables of results: `python docs/facts.py` writes them.

A page has them between `<!-- facts: NAME -->` and `<!-- end -->`, so that it is complete on a Git host too. A test
fails where a page is out of date; `make docs` writes them first.
"""

from __future__ import annotations

import csv
import html
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import typer

from poise import methods
from poise.backbones.families import FAMILIES, REFUSED
from poise.cli.app import app
from poise.evaluate.config import RunConfig, Settings
from poise.methods.method import parameters
from poise.options import rows as option_rows
from poise.posthoc import posthoc
from poise.report.published import paper as published
from poise.reproduce.board import RULES, STATUSES
from poise.rules import Gives, rules

DOCS = Path(__file__).parent
SECTION = re.compile(r"(<!-- facts: (?P<name>[^>]+?) -->\n).*?(<!-- end -->)", re.DOTALL)
OWN = "results.md#methods-of-other-papers"
DIFFERENCES, ECE_DIFFERENCE = "accuracy \N{MINUS SIGN} zero-shot", "ECE \N{MINUS SIGN} zero-shot"


def page_of(method: str) -> str:
    """The file of a method's page, below docs/methods."""
    return method.replace("+", "-") + ".md"


@cache
def table(page: str, heading: str) -> dict[str, dict[str, str]]:
    """The rows of the first table of ``page`` whose header contains ``heading``: first cell -> column -> cell."""
    lines = iter((DOCS / page).read_text(encoding="utf-8").splitlines())
    header = next(_cells(line) for line in lines if line.startswith("|") and heading in line)
    next(lines)
    found: dict[str, dict[str, str]] = {}
    for line in lines:
        if not line.startswith("|"):
            break
        first, *rest = _cells(line)
        found.setdefault(first.strip("*`"), dict(zip(header[1:], rest, strict=True)))
    return found


def _cells(line: str) -> list[str]:
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


@cache
def _means(metric: str) -> dict[str, str]:
    """Method -> mean over five datasets, of a table of results."""
    with (DOCS / "tables" / f"results_methods_{metric}.csv").open(newline="", encoding="utf-8") as file:
        return {row["method"]: row["mean"].partition(" ±")[0] for row in csv.DictReader(file)}


def accuracy() -> dict[str, str]:
    """Method -> mean accuracy."""
    return _means("accuracy")


def calibration_error() -> dict[str, str]:
    """Method -> mean ECE."""
    return _means("ece")


def needs(method: methods.Method) -> str:
    """What a method needs, in words."""
    words = {
        "gradient": "a gradient through the text tower",
        "stream": "images in a fixed order, one worker",
        "labels": "a few labelled images per class",
    }
    listed = [words[need] for need in method.needs]
    return ", ".join(listed) or "nothing more than the " + ("views" if "all views" in method.cost else "plain view")


def options(method: methods.Method) -> str:
    """The names of a method's options with their defaults."""
    values: dict[str, object] = {}
    if method.rule:
        rule, shared = method.make_rule(), method.shared_with_rule()
        names = [name for name in parameters(rules.get(method.rule)) if name not in shared]
        values |= {name: getattr(rule, name) for name in names}
        values |= {name: value for name, value in shared.items() if name != "target"}
        values |= {"selection": method.selection} if "target" in shared else {}
    elif method.tunes:
        values |= {"weight": method.terms[1].weight} if len(method.terms) == 2 else {}
        for term in method.terms:
            values |= {f"{term.objective}.{name}": value for name, value in term.options.items()}
        values |= {
            name: getattr(method, name) for name in ("selection", "include_plain", "steps", "lr", "weight_decay")
        }
        if method.cats:
            values |= {name: getattr(method, name) for name in ("t_min", "t_max", "detach_temperature")}
    return ", ".join(f"`{name}` {_shown(value)}" for name, value in values.items()) or "none"


def _shown(value: object) -> str:
    return {"": "(required)", "None": "none"}.get(str(value), str(value).lower())


def steps_after(method: methods.Method) -> str:
    """The post-hoc steps that may follow a method."""
    gives = method.make_rule().gives if method.rule else Gives.ALL_VIEWS
    if gives is Gives.PROBABILITIES:
        return "none, because it gives probabilities"
    allowed = [name for name in posthoc if gives is Gives.ALL_VIEWS or not posthoc.get(name)().reads_views]
    return ", ".join(f"`{name}`" for name in allowed)


def published_numbers(method: str) -> str:
    """Accuracy / ECE in print, with the sources."""
    found = []
    for name in ("table1", "table5"):
        rows = {row.metric: row for row in published.ROWS if (row.table, row.method) == (name, method)}
        if rows:
            number = name.removeprefix("table")
            pair = " / ".join(f"{rows[metric].average:.2f}" for metric in ("accuracy", "ece"))
            found += [f"{pair} (Choi et al., Table {number}, ten datasets)"] * (pair not in " ".join(found))
    for first, row in _published_peers():
        if first == method:
            found.append(f"{row[0]} (11 datasets; {row[2]})" if "datasets" not in row[0] else f"{row[0]} ({row[2]})")
    if not found and (row := table("results.md", DIFFERENCES).get(method)):
        found = [row[column].rstrip(" ᵃᵇᶜᵈ") for column in ("CLIP, re-run", "CLIP, other") if row[column]]
        found[-1:] = [f"{last} ([sources](../{OWN}))" for last in found[-1:]]
    return "; ".join(found) or "none found in print"


@cache
def _published_peers() -> list[tuple[str, list[str]]]:
    text = (DOCS / "peers.md").read_text(encoding="utf-8").partition("| | 11 datasets |")[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [(cells[0], cells[1:]) for cells in map(_cells, lines)]


def method_facts(name: str) -> str:
    """The table at the head of a method's page."""
    method = methods.get(name)
    rows = {
        "method": f"`{name}`, in the group `{method.about.group}`",
        "in short": method.about.description,
        "source": _linked(method.about),
        "needs": needs(method),
        "cost per image": method.cost,
        "defaults": f"`{method.describe()}`",
        "options": options(method),
        "post-hoc steps that may follow": steps_after(method),
        "published, CLIP ViT-B/16, accuracy / ECE": published_numbers(name),
    }
    if name in accuracy():
        gap = table("results.md", DIFFERENCES)[name][ECE_DIFFERENCE] or "0"
        rows["measured here, `pocket`, accuracy / ECE"] = (
            f"{accuracy()[name]} / {calibration_error()[name]}, ECE minus zero-shot {gap} ([five datasets](../{OWN}))"
        )
    else:
        points, where = measured(name)
        numbers = " / ".join(f"{value:.1f}" for value in points.get(name, ()))
        rows["measured here, `pocket`, accuracy / ECE"] = f"{numbers}, {where}" if numbers else "not yet"
    first, *others = [f"| {key} | {_escaped(value)} |" for key, value in rows.items()]
    return "\n".join([first, "|---|---|", *others])


def _linked(about: methods.About) -> str:
    if about.link:
        return f"[{about.citation}]({about.link})"
    title = published.PAPER.partition(", ")[2]
    return f"{about.citation}: *{title}* (preprint; no address of it is known here)"


def usage(name: str) -> str:
    """How a method is called, in Python and on the command line."""
    reason = '<!-- skip: next "tests/test_methods.py and tests/rules run every method" -->'
    bench = [reason, "```bash", f"poise bench run --dataset folder:labelled --method {name} --out RUNS", "```"]
    if methods.get(name).ordered or methods.get(name).about.group in ("streams", "few-shot"):
        return "\n".join(bench)
    python = [reason, "```python", "import poise", "", f'classify = poise.Classifier(["cat", "dog"], method="{name}")']
    python += ['print(classify("image.jpg"))', "```"]
    return "\n".join([*python, *bench])


def measured(name: str) -> tuple[dict[str, tuple[float, ...]], str]:
    """Accuracy and ECE of a method and of those that were measured on the same images, and which images these are.

    Both are empty for a method that was not measured.
    """
    if name in accuracy():
        both = {each: (float(accuracy()[each]), float(calibration_error()[each])) for each in accuracy()}
        return both, "five datasets"
    with (DOCS / "sensitivity.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["sweep"] == "objective" and row["dataset"] == "pets"]
    if any(row["value"] == name for row in rows):
        found = {row["value"]: (float(row["accuracy"]), float(row["ece"])) for row in rows}
        return found, f"{rows[0]['images']} images of Pets"
    own = table("results.md", "| ECE (floor) | AURC |")
    if name not in own:
        return {}, ""
    cells = {each: [own[each][column] for column in ("accuracy", "ECE (floor)")] for each in ("zero-shot", name)}
    numbers = {each: tuple(float(cell.split()[0]) for cell in row) for each, row in cells.items()}
    return numbers, "1,000 images of Caltech101"


def figure(name: str) -> str:
    """The figure of a method's page."""
    if not (images := measured(name)[1]):
        return "It has not been measured on real images yet."
    about = f"Accuracy and calibration error of pocket on {images}: {name} and what was measured beside it"
    return f"![{about}](../figures/methods/{figure_file(name)})\n\n{about}."


def figure_file(name: str) -> str:
    """The file of a method's figure, below docs/figures/methods."""
    return page_of(name).removesuffix(".md") + ".svg"


def draw(chosen: str) -> str:
    """Accuracy and calibration error of all methods that were measured, one of them marked, as SVG."""
    points, _ = measured(chosen)
    (left, right), (low, high) = ((min(axis) - 1, max(axis) + 1) for axis in zip(*points.values(), strict=True))
    wide, tall, edge = 560, 300, 44

    def place(point: tuple[float, ...]) -> tuple[float, float]:
        x, y = (point[0] - left) / (right - left), (point[1] - low) / (high - low)
        return round(edge + x * (wide - 2 * edge), 1), round(tall - edge - y * (tall - 2 * edge), 1)

    parts = [f'<rect width="{wide}" height="{tall}" fill="#fff"/>']
    parts.append(f'<path d="M{edge} {edge}V{tall - edge}H{wide - edge}" fill="none" stroke="#8a8a8a"/>')
    for value in _ticks(left, right):
        x, _ = place((value, low))
        parts.append(f'<text x="{x}" y="{tall - edge + 15}" text-anchor="middle">{value}</text>')
    for value in _ticks(low, high):
        _, y = place((left, value))
        parts.append(f'<text x="{edge - 6}" y="{y + 4}" text-anchor="end">{value}</text>')
    parts.append(f'<text x="{wide / 2}" y="{tall - 8}" text-anchor="middle">accuracy %</text>')
    parts.append(f'<text x="8" y="{edge - 14}">ECE % (lower is better)</text>')
    for name, point in points.items():
        if name != chosen:
            x, y = place(point)
            parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="#b8bec5"><title>{html.escape(name)}</title></circle>')
    for name, colour in {"zero-shot": "#1b1f24", chosen: "#0072b2"}.items():
        x, y = place(points[name])
        left_of = (name != chosen and x > wide * 0.2) or x > wide * 0.7
        side, shift = ("end", -9) if left_of else ("start", 9)
        rise = -8 if name == chosen else 16  # the two may be close to each other
        parts.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{colour}"/>')
        parts.append(
            f'<text x="{x + shift}" y="{y + rise}" text-anchor="{side}" fill="{colour}" font-weight="bold" '
            f'stroke="#fff" stroke-width="3" paint-order="stroke">{name}</text>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" '
    return f'{head}font-family="sans-serif" font-size="12">{"".join(parts)}</svg>\n'


def _ticks(low: float, high: float) -> range:
    step = 1 if high - low < 10 else 5
    return range((int(low) // step + 1) * step, int(high) + 1, step)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def which_method() -> str:
    """One table of all methods that were measured."""
    differences = table("results.md", DIFFERENCES)
    lines = ["| method | accuracy | ECE | ECE minus zero-shot | seconds | needs |", "|---|--:|--:|--:|--:|---|"]
    for name in differences:
        method = methods.get(name)
        row, base = differences[name], name.partition(" | ")[0]
        link = f"[{_escaped(name)}](methods/{page_of(base)})"
        needed = ", ".join(method.needs) or ("views" if method.reads_views else "plain view")
        cells = [link, accuracy()[name], calibration_error()[name], row[ECE_DIFFERENCE], row["seconds"], needed]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def method_list() -> str:
    """The methods by group, with links."""
    lines = []
    for group, about in methods.GROUPS.items():
        if not methods.names(group):
            continue
        lines += [f"**`{group}`**: {about}", ""]
        lines += [
            f"- [{name}]({page_of(name)}): {methods.get(name).about.description}" for name in methods.names(group)
        ]
        lines.append("")
    return "\n".join(lines).strip()


GUIDES = {  # what a reader wants -> the page's title and file
    "use your own labels and templates": ("Your own labels", "guides/own_labels.md"),
    "ask which labels apply, in groups or in a tree": ("Several labels, groups and trees", "labels.md"),
    "use your own model, without a network": ("Your own model, offline", "guides/own_model.md"),
    "try it in the browser": ("The demo page", "demo.md"),
    "know how often answers are right, from a few labelled images": ("When to trust a number", "calibration.md"),
    "go from a folder of photos to a report": ("From a folder of photos to a report", "tutorial.md"),
    "find images that show none of the labels": ("Out-of-distribution images", "unknown.md"),
    "classify many images, resume, and use the results in a pipeline": ("Batch jobs", "batch.md"),
    "answer requests over HTTP": ("Serving", "serving.md"),
    "call a server from Python": ("The client", "client.md"),
    "run without torch": ("Export to ONNX", "export.md"),
    "classify millions of images, or store their features": ("Many images", "scale.md"),
    "use several machines": ("Clusters", "cluster.md"),
    "compare methods on your own labelled images": ("Your own dataset", "guides/own_dataset.md"),
    "know what a setting changes": ("Compare two runs", "guides/compare_runs.md"),
    "minimise a loss of your own": ("Your own objective", "guides/own_objective.md"),
    "put methods, metrics, datasets or models into a package": ("Your own package", "guides/own_package.md"),
}


def guides() -> str:
    """The guides that exist, by what a reader wants."""
    there = {want: (title, page) for want, (title, page) in GUIDES.items() if (DOCS / page).is_file()}
    links = [
        (want, f"[{title}]({page.removeprefix('guides/') if 'guides/' in page else '../' + page})")
        for want, (title, page) in there.items()
    ]
    return "\n".join(["| you want to | read |", "|---|---|", *(f"| {want} | {link} |" for want, link in links)])


def commands() -> str:
    """All commands with their arguments and options."""
    found = typer.main.get_command(app)
    return "\n".join(_command(("poise",), found)).strip()


def _command(path: tuple[str, ...], command: Any) -> Iterator[str]:
    about = " ".join((command.help or "").split())
    yield f"## {' '.join(path)}\n\n{about}\n" if len(path) > 1 else f"{about}\n"
    rows = [row for row in command.params if row.name != "help" and not getattr(row, "hidden", False)]
    if rows:
        yield "| option | default | meaning |\n|---|---|---|"
        yield from map(_option_row, rows)
        yield ""
    for name, part in getattr(command, "commands", {}).items():
        yield from _command((*path, name), part)


def _option_row(row: Any) -> str:
    names = " / ".join(f"`{name}`" for name in [*row.opts, *row.secondary_opts])
    argument = row.param_type_name == "argument"
    default = row.show_default if isinstance(row.show_default, str) else row.default
    plain = default is None or default == "" or callable(default) or default == () or default == []
    shown = "required" if row.required else "" if plain else f"`{getattr(default, 'value', default)}`"
    shown = {"`False`": "off", "`True`": "on"}.get(shown, shown)
    meaning = _escaped(" ".join((row.help or "").split()))
    return f"| {f'`{row.name.upper()}`' if argument else names} | {_escaped(shown)} | {meaning} |"


def configuration(kind: type[Any]) -> str:
    """The keys of a configuration file: the fields of a dataclass, with its comments or the help of shared options."""
    about = {row.name: row.about.help for row in option_rows(kind)}
    about |= dict(re.findall(r"^    (\w+): .+?  #: (.+)$", inspect.getsource(kind), re.MULTILINE))
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for row in fields(kind):
        value = getattr(kind(), row.name)
        shown = _escaped("" if value in ("", (), {}, None) else f"`{_toml(value)}`")
        kind_of = _escaped(str(row.type).replace("tuple[", "list[").replace(", ...]", "]"))
        lines.append(f"| `{row.name}` | {kind_of} | {shown} | {_escaped(about[row.name])} |")
    return "\n".join(lines)


def _toml(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value).replace("'", '"').replace("False", "false")


def families() -> str:
    """The families of models with what was measured of each (tests/backbones/zoo.py)."""
    stored = json.loads((DOCS / "parity.json").read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    lines = [
        "| family | name to copy | what is special | text | tokens | MaPLe | texts differ | images differ | ONNX "
        "| OpenVINO |",
        "|---|---|---|---|--:|---|--:|--:|---|---|",
    ]
    words = {True: "yes", False: "no", None: "-"}
    for family in FAMILIES:
        row = stored[family.key]
        cells = [
            *(family.title, f"`{family.name}`", family.trait, "shared" if row["causal"] else "each"),
            str(row["context"]),
            *(words[row["deep"]], row["text"], row["image"], words[row.get("onnx")], words[row.get("openvino")]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"Tested with {versions}."])


def refused_models() -> str:
    """The families of transformers that are refused by name."""
    lines = ["| `model_type` | reason | nearest that works |", "|---|---|---|"]
    return "\n".join([*lines, *(f"| `{kind}` | {why} | `{instead}` |" for kind, (why, instead) in REFUSED.items())])


def sensitivity(sweep: str) -> str:
    """One sweep of benchmarks/sensitivity.py, from its CSV file."""
    with (DOCS / "sensitivity.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["sweep"] == sweep]
    columns = (
        "dataset, images",
        sweep,
        "accuracy",
        "confidence",
        "confidence - accuracy",
        "ECE (floor)",
        "ECE - default",
        "other labels",
    )
    lines = [f"| {' | '.join(columns)} |", "|---|---|--:|--:|--:|--:|--:|--:|"]
    for row in rows:
        over, change = (
            f"{float(row[name]):+.1f} [{float(row[low]):+.1f}, {float(row[high]):+.1f}]"
            for name, low, high in (
                ("over_confidence", "over_confidence_low", "over_confidence_high"),
                ("ece_difference", "ece_low", "ece_high"),
            )
        )
        accuracy, confidence, error, floor = (
            f"{float(row[name]):.1f}" for name in ("accuracy", "confidence", "ece", "ece_floor")
        )
        cells = (f"{row['dataset']}, {row['images']}", f"`{row['value']}`", accuracy, confidence, over)
        lines.append(f"| {' | '.join((*cells, f'{error} ({floor})', change, row['other_labels']))} |")
    return "\n".join(lines)


def board_statuses() -> str:
    """The words of the board."""
    return "\n".join(
        ["| status | meaning |", "|---|---|", *(f"| {word} | {about} |" for word, about in STATUSES.items())]
    )


def board_rules() -> str:
    """The rules for entries of the board."""
    return "\n".join(f"- {rule}" for rule in RULES)


MADE: dict[str, Callable[[], str]] = {
    "board statuses": board_statuses,
    "board rules": board_rules,
    "which method": which_method,
    "list of methods": method_list,
    "guides": guides,
    "families": families,
    "refused models": refused_models,
    "commands": commands,
    "run keys": lambda: configuration(RunConfig),
    "setting keys": lambda: configuration(Settings),
}
BY_NAME: dict[str, Callable[[str], str]] = {
    "method": method_facts,
    "usage": usage,
    "figure": figure,
    "sensitivity": sensitivity,
}


def filled(text: str) -> str:
    """Return a page's text with its facts as they are now."""

    def made(match: re.Match[str]) -> str:
        kind, _, name = match["name"].partition(" ")
        content = BY_NAME[kind](name) if kind in BY_NAME else MADE[match["name"]]()
        return f"{match[1]}{content}\n{match[3]}"

    return SECTION.sub(made, text)


def pages() -> list[Path]:
    """The pages with facts."""
    written = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "project"]  # those are copies
    return [path for path in written if "<!-- facts: " in path.read_text(encoding="utf-8")]


def figures() -> dict[Path, str]:
    """The figures that are made from the tables of results: file -> content."""
    folder = DOCS / "figures" / "methods"
    return {folder / figure_file(name): draw(name) for name in methods.every_name() if measured(name)[0]}


if __name__ == "__main__":
    for path, content in figures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for path in pages():
        before = path.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            path.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{path.relative_to(DOCS.parent)}\n")
