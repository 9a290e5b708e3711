"""The site's table of contents, and pages of the repository that lie outside of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
PROJECT = {  # files outside of docs/ that are pages of the site, by their name in docs/project
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
    "model_card": "src/poise/backbones/weights/pocket/MODEL_CARD.md",
    "golden_numbers": "tests/golden/README.md",
}
SECTIONS = {  # caption -> pages and patterns, in order; pages that do not exist are left out
    "Start": ["first_image", "probability", "which_method", "glossary"],
    "Guides": ["guides/index", "guides/*", "calibration", "unknown", "batch", "demo", "serving", "export", "cluster"],
    "Methods": ["methods/index", "methods/*", "peers", "streams", "frameworks", "choices"],
    "Research": ["reproduce", "results", "step", "metrics", "speed", "pocket", "models"],
    "Reference": ["api/index", "api/*", "gallery/index"],
    "Project": ["architecture", "promises", "project/*"],
}


def section_pages(patterns: list[str], docs: Path = DOCS) -> list[str]:
    """Return the pages of one section, each once, in the order of the patterns."""
    found: dict[str, None] = {}
    for pattern in patterns:
        if pattern == "gallery/index":  # written while the site is built
            found[pattern] = None
        for path in sorted(docs.glob(f"{pattern}.md")):
            found[path.relative_to(docs).with_suffix("").as_posix()] = None
    return list(found)


def toctrees() -> str:
    """Return the hidden tables of contents of the start page."""
    blocks = []
    for caption, patterns in SECTIONS.items():
        pages = "\n".join(f"/{page}" for page in section_pages(patterns))
        blocks.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n")
    return "\n".join(blocks)


def project_page(path: str) -> str:
    """Return the text of a file outside of docs/, with links as they are seen from docs/project."""
    folder, text = Path(path).parent, (DOCS.parent / path).read_text(encoding="utf-8")

    def moved(match: re.Match[str]) -> str:
        target = match["target"]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        file, _, anchor = target.partition("#")
        inside = (DOCS.parent / folder / file).resolve()
        root = DOCS.parent.resolve()
        relative = Path(*[".."] * 2) / inside.relative_to(root)
        return f"]({relative.as_posix()}{'#' * bool(anchor)}{anchor})"

    return re.sub(r"\]\((?P<target>[^)\s]+)\)", moved, text)


def write_project_pages(app: Sphinx) -> None:
    """Copy the files of `PROJECT` into docs/project, which git ignores."""
    folder = DOCS / "project"
    folder.mkdir(exist_ok=True)
    for name, path in PROJECT.items():
        target = folder / f"{name}.md"
        if (DOCS.parent / path).is_file():
            text = project_page(path)
            if not target.is_file() or target.read_text(encoding="utf-8") != text:
                target.write_text(text, encoding="utf-8")
        else:
            target.unlink(missing_ok=True)


def site_links(app: Sphinx, page: str, source: list[str]) -> None:
    """Point links to files outside of docs/ at their pages, and give the start page its table of contents."""
    up = "../" * page.count("/")
    for name, path in PROJECT.items():
        source[0] = source[0].replace(f"]({up}../{path}", f"]({up}project/{name}.md")
    source[0] = source[0].replace(f"]({up}../docs/", f"]({up}")
    if page == "index":
        source[0] += "\n" + toctrees()


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", write_project_pages)
    app.connect("source-read", site_links)
    return {"parallel_read_safe": True}
