"""Formulas as SVG, set by matplotlib: they look the same everywhere, without a font or a script from elsewhere."""

from __future__ import annotations

import html
import re
from functools import cache
from typing import Any

import matplotlib as mpl
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from sphinx.application import Sphinx

SIZE = 100  # points in which a formula is set; it is scaled to the text around it
COMMANDS = {Path.MOVETO: "M", Path.LINETO: "L", Path.CURVE3: "Q", Path.CURVE4: "C"}
SPELLINGS = {  # that TeX has, and matplotlib has under another name
    r"\lVert": r"\|",
    r"\rVert": r"\|",
    r"\top": r"\mathsf{T}",
    r"\tfrac": r"\frac",
}


@cache
def as_svg(formula: str) -> str:
    """Return a formula as an SVG element whose baseline is that of the text; ValueError if matplotlib can't set it."""
    for name, other in SPELLINGS.items():
        formula = re.sub(re.escape(name) + r"(?![A-Za-z])", lambda _, other=other: other, formula)
    formula = re.sub(r"(\\sum(?:_\{[^}]*\}|_\w)?)", r"\1\\,", formula)  # matplotlib leaves no space after a sum
    text = "$" + " ".join(formula.split()) + "$"
    with mpl.rc_context({"mathtext.fontset": "cm"}):
        outline = TextPath((0, 0), text, size=SIZE, prop=FontProperties(size=SIZE))
        width, height, depth, *_ = MathTextParser("path").parse(text, 72, FontProperties(size=SIZE))
    scale = 1.05 / SIZE  # em per point
    size = (
        f"width:{width * scale:.3f}em;height:{(height + 4) * scale:.3f}em;vertical-align:{-(depth + 2) * scale:.3f}em"
    )
    box = f"0 {-(height - depth) - 2:.1f} {max(width, 1):.1f} {height + 4:.1f}"
    return (
        f'<svg class="math" role="img" aria-label="{html.escape(formula)}" style="{size}" viewBox="{box}">'
        f'<path d="{_outline(outline)}" fill="currentColor"/></svg>'
    )


def _outline(path: Path) -> str:
    parts = []
    for points, code in path.iter_segments(curves=True, simplify=False):
        if code == Path.CLOSEPOLY:
            parts.append("Z")
            continue
        pairs = " ".join(f"{x:.1f} {-y:.1f}" for x, y in zip(points[::2], points[1::2], strict=True))
        parts.append(f"{COMMANDS[code]}{pairs}")
    return "".join(parts)


def _set(formula: str, *, block: bool = False) -> str:
    """Return a formula as SVG, or as MathML where matplotlib can't set it (matrices, cases)."""
    try:
        return as_svg(formula.replace(r"\frac", r"\dfrac") if block else formula)
    except ValueError:
        return str(tex2mathml(formula, as_block=block))


def inline(writer: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    writer.body.append(_set(node.astext()))
    raise nodes.SkipNode


def block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula of its own."""
    writer.body.append(f'<div class="formula">{_set(node.astext(), block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer."""
    app.add_html_math_renderer("mathsvg", inline_renderers=(inline, None), block_renderers=(block, None))
    app.config.html_math_renderer = "mathsvg"
    return {"parallel_read_safe": True}
