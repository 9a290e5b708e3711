"""The site's table of contents, and pages of the repository that lie outside of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from poise import methods

DOCS = Path(__file__).parents[1]
PROJECT = {  # files outside of docs/ that are pages of the site, by their name in docs/project
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "security": "SECURITY.md",
    "model_card": "src/poise/backbones/weights/pocket/MODEL_CARD.md",
    "golden_numbers": "tests/golden/README.md",
}
PROJECT_PAGES = {f"project/{name}": path for name, path in PROJECT.items()}
_METHODS = [f"methods/{name.replace('+', '-')}" for name in methods.every_name()]
SECTIONS = {  # the site's sections: title -> first page, and the pages below it; what does not exist is left out
    "Start": ("first_image", ["tutorial", "probability", "which_method", "gallery/index", "glossary"]),
    "Guides": (
        "guides/index",
        [
            "guides/own_labels",
            "labels",
            "guides/own_model",
            "calibration",
            "which_images",
            "unknown",
            "batch",
            "scale",
            "demo",
            "serving",
            "client",
            "export",
            "integrations",
            "cluster",
            "guides/own_dataset",
            "guides/compare_runs",
            "guides/own_objective",
            "guides/own_package",
            "guides/*",
        ],
    ),
    "Methods": ("methods/index", [*_METHODS, "peers", "streams", "frameworks", "choices"]),
    "Results": (
        "results",
        [
            "results_frameworks",
            "reproduce",
            "board",
            "metrics",
            "sensitivity",
            "step",
            "speed",
            "pocket",
            "project/model_card",
            "models",
        ],
    ),
    "Reference": ("api/index", ["reference/commands", "reference/configuration", "api/poise", "api/*"]),
    "Project": ("architecture", ["promises", "*", "project/*"]),  # and whatever no other section has
}
TITLES = {"project/model_card": "Model card of pocket", "step": "Steps of other sizes"}  # in the table of contents
MADE = {"gallery/index", *(f"project/{name}" for name in PROJECT)}  # written while the site is built


def pages_below() -> dict[str, list[str]]:
    """Return the pages below the first page of each section, each page once."""
    taken = {"index", *(first for first, _ in SECTIONS.values())}
    named = {page for _, patterns in SECTIONS.values() for page in patterns if "*" not in page}
    below: dict[str, list[str]] = {}
    for first, patterns in SECTIONS.values():
        found = [page for pattern in patterns for page in _matching(pattern, named) if page not in taken]
        below[first] = list(dict.fromkeys(found))
        taken.update(found)
    return below


def _matching(pattern: str, named: set[str]) -> list[str]:
    if pattern in MADE:
        return [pattern] if pattern not in PROJECT_PAGES or (DOCS.parent / PROJECT_PAGES[pattern]).is_file() else []
    written = [path.relative_to(DOCS).with_suffix("").as_posix() for path in sorted(DOCS.glob(f"{pattern}.md"))]
    return [page for page in written if page == pattern or page not in named]


def toctree(pages: list[str]) -> str:
    """Return a hidden table of contents."""
    return "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"


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
        source[0] += toctree([f"{title} </{first}>" for title, (first, _) in SECTIONS.items()])
    if below := pages_below().get(page):
        source[0] += toctree([f"{TITLES[name]} </{name}>" if name in TITLES else f"/{name}" for name in below])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("builder-inited", write_project_pages)
    app.connect("source-read", site_links)
    return {"parallel_read_safe": True}
