"""`poise list KIND`: the rows of every registry, with the names that other commands accept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated

import typer

from poise.defaults import DEFAULT_VIEWS
from poise.errors import InvalidOptionError, UnknownNameError
from poise.report.tables.table import Line, Table
from poise.terminal import styled


def show(*tables: Table) -> None:
    """Print tables; on a terminal in colour and as wide as it is."""
    from poise.report.tables.formats import render

    typer.echo(render(tables, colour=sys.stdout.isatty()), styled(sys.stdout), nl=False)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]], *notes: str) -> Table:
    return Table("", columns, tuple(Line.of(*map(str, row)) for row in rows), notes, texts=len(columns))


def _methods() -> Table:
    from poise import methods

    rows = [methods.get(name) for name in methods.every_name()]
    texts = (
        (
            row.about.group,
            row.name,
            row.about.description,
            ", ".join(row.needs),
            f"{row.image_passes(DEFAULT_VIEWS)}{'+text' * row.tunes}",  # one word, which no terminal breaks
            row.about.citation,
        )
        for row in rows
    )
    return _table(
        ("Group", "Name", "Description", "Needs", "Cost", "Citation"),
        texts,
        "The name of a group means all of its methods:",
        *(f"  {name}: {about}" for name, about in methods.GROUPS.items()),
        "  all: those of every group that need neither a stream nor labels",
        "Needs: gradient (through the text tower), stream (images in a fixed order), labels (of a few images).",
        f"Cost: passes of an image's {DEFAULT_VIEWS} views through the image tower, where zero-shot has 1; +text: "
        "all labels also pass through the text tower, forward and backward in each step (see "
        "`benchmarks/speed.py --parts each`).",
        "Post-hoc steps may follow a method: kld+cats | cots. See `poise list posthoc`.",
        "`poise list settings` shows what each method costs and its default settings.",
    )


def _settings() -> Table:
    from poise import methods

    rows = [methods.get(name) for name in methods.every_name()]
    texts = ((row.name, row.cost, row.describe()) for row in rows)
    return _table(("Method", "Cost per image", "Default settings"), texts)


def _posthoc() -> Table:
    from poise.posthoc import posthoc

    rows = [posthoc.get(name)() for name in posthoc]
    texts = (
        (
            name,
            "all views" if row.reads_views else "the answer",
            "kept" if row.keeps_label else "may change",
            row.citation,
            _first_line(row),
        )
        for name, row in zip(posthoc, rows, strict=True)
    )
    return _table(("Name", "Reads", "Label", "Citation", "Description"), texts)


def _rules() -> Table:
    from poise.rules import rules

    return _table(("Name", "Description"), ((name, _first_line(rules.get(name))) for name in rules))


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().partition("\n")[0]


def _models() -> Table:
    """Return one model to copy for each family."""
    from poise.backbones.families import FAMILIES
    from poise.backbones.load import models

    forms = [models.get(scheme) for scheme in models if scheme != "open_clip"]
    return _table(
        ("Family", "Name to copy", "What it is"),
        [
            *((form.form.partition(":")[0], form.form, form.describe()) for form in forms),
            *((row.title, row.name, row.trait) for row in FAMILIES if "/" in row.name and "ORG" not in row.name),
        ],
        "Names without a scheme are open_clip's, ARCHITECTURE/WEIGHTS, downloaded on first use; `poise list models "
        "--filter B-16` lists single names.",
        "`poise models check NAME` loads a model and compares it with its own library; docs/models.md says what works.",
    )


def _single_models() -> Table:
    from poise.backbones import describe_models

    return _table(("Name", "Description"), describe_models())


def datasets() -> Table:
    """Return the known datasets: classes, test images, AugMix under both published protocols, licence."""
    from poise.data.catalog import datasets as registered
    from poise.data.opening import schemes

    rows = []
    for row in map(registered.get, registered):
        # Only ImageNet's shifts differ between TPT's scripts and those of C-TPT and O-TPT.
        augmix = "c-tpt" if row.augmix != row.augmix_c_tpt else "on" if row.augmix else "off"
        rows.append((row.name, row.heading, row.classes, row.images, augmix, row.title, row.licence))
    return _table(
        ("Name", "Heading", "Classes", "Images", "AugMix", "Title", "Licence"),
        rows,
        f"Also: {', '.join(f'{row.form} ({row.about})' for row in map(schemes.get, schemes))}.",
        "AugMix c-tpt: off under TPT's protocol, on under that of C-TPT and O-TPT.",
    )


def _metrics() -> Table:
    from poise import metrics

    rows = [metrics.get(name) for name in metrics.names()]
    texts = ((row.name, row.unit, row.direction or "-", row.about) for row in rows)
    return _table(("Name", "Unit", "Better", "Description"), texts)


def _frameworks() -> Table:
    from poise.tuning.frameworks import frameworks

    rows = [frameworks.get(name) for name in frameworks]
    texts = ((row.name, ", ".join(row.inits), "yes" if row.ordered else "no", row.description) for row in rows)
    return _table(("Name", "Inits", "Ordered", "Description"), texts)


def _inits() -> Table:
    from poise.inits.kinds import inits

    return _table(("Name", "Description"), ((name, inits.get(name).description) for name in inits))


def _objectives() -> Table:
    from poise.objectives import objectives

    return _table(("Name", "Description"), ((name, _first_line(objectives.get(name))) for name in objectives))


def _figures() -> Table:
    from poise.report.figures.write import kinds

    rows = [kinds.get(name) for name in kinds]
    return _table(("Name", "Title", "Description"), ((row.name, row.title, row.about) for row in rows))


def _formats() -> Table:
    from poise.report.tables.formats import formats

    return _table(("Name", "Description"), ((name, formats.get(name).about) for name in formats))


def _plugins() -> Table:
    from poise import plugins

    rows = ((row.name, row.package or "-", row.module) for row in plugins.found())
    return _table(
        ("Name", "Package", "Module"),
        rows,
        f"The variable {plugins.CHOICE} names the ones of packages that are loaded, with commas; all if it is not set.",
    )


LISTS: dict[str, tuple[Callable[[], Table], str]] = {
    "models": (_models, "what --model accepts"),
    "methods": (_methods, "what --method accepts, with needs and costs"),
    "settings": (_settings, "default settings of each method"),
    "datasets": (datasets, "what --dataset accepts"),
    "metrics": (_metrics, "what --metrics of reports accepts"),
    "frameworks": (_frameworks, "how a benchmark adapts to images: each by itself, or a stream"),
    "inits": (_inits, "prompts from which tuning starts"),
    "objectives": (_objectives, "losses that methods minimise"),
    "rules": (_rules, "ways to answer without tuning"),
    "posthoc": (_posthoc, "steps that may follow a method"),
    "figures": (_figures, "what --kinds of `poise bench figures` accepts"),
    "formats": (_formats, "what --format of reports accepts"),
    "plugins": (_plugins, "packages of others that add rows"),
}


def _kinds() -> Table:
    rows = ((kind, about) for kind, (_, about) in LISTS.items())
    return _table(("Kind", "What it is"), rows, "`poise list KIND` lists the names.")


def list_names(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=lambda: list(LISTS),
            help=f"What to list: {', '.join(LISTS)}.",
            show_default="these kinds",
        ),
    ] = "",
    text: Annotated[str, typer.Option("--filter", help="Show only rows that contain this text.")] = "",
) -> None:
    """List the names that options accept, with descriptions."""
    if kind and kind not in LISTS:
        raise UnknownNameError.of("kind", kind, LISTS)
    make = _kinds if not kind else _single_models if kind == "models" and text else LISTS[kind][0]
    table = make()
    lines = tuple(line for line in table.lines if any(text.lower() in str(cell).lower() for cell in line.cells))
    if text and not lines:
        hint = f"See `poise list {kind}".rstrip() + "`."
        raise InvalidOptionError(f"None of the {kind or 'kinds'} contains '{text}'.", hint=hint)
    show(replace(table, lines=lines))
