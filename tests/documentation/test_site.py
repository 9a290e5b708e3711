"""The documentation site: it builds without warnings, and has what it promises."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from poise import methods
from tests.documentation import blocks

DOCS = blocks.ROOT / "docs"
RECIPES = re.findall(r"```python\n(# [^\n]+\n.*?)```", (blocks.ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


facts = load(DOCS / "facts.py")


@pytest.mark.timeout(600)
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "pydata_sphinx_theme", "sphinx_gallery", "sphinx_copybutton"):
        pytest.importorskip(package, reason="install the 'docs' extra")
    # A page's nodes refer to each other, and looking for those that are left takes a quarter of the time.
    build = "import gc, sys; gc.disable(); from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    options = ["-q", "-W", "--keep-going", "-d", str(tmp_path / "doctrees")]
    command = [sys.executable, "-c", build, *options, str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in blocks.pages() if path.is_relative_to(DOCS)]
    assert [page for page in pages if not (tmp_path / "site" / page).is_file()] == []
    foreign = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+')
    for page in (tmp_path / "site").rglob("*.html"):
        assert foreign.findall(page.read_text(encoding="utf-8")) == [], page


@pytest.mark.parametrize("name", methods.every_name())
def test_every_method_has_a_page(name: str) -> None:
    text = (DOCS / "methods" / facts.page_of(name)).read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert f"<!-- facts: method {name} -->" in text
    assert f"<!-- facts: figure {name} -->" in text
    assert f"<!-- facts: usage {name} -->" in text
    assert not facts.measured(name)[0] or f"](../figures/methods/{facts.figure_file(name)})" in text
    assert re.search(r"\| source \| .*\b20\d\d\b", text)
    for section in ("## Idea", "## Formula", "## Use", "## Parity"):
        assert section in text


@pytest.mark.parametrize("page", facts.pages(), ids=lambda page: page.stem)
def test_facts_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == facts.filled(text), "run `make docs`, which writes the facts"


def test_figures_of_methods_are_up_to_date() -> None:
    old = [path.name for path, content in facts.figures().items() if path.read_text(encoding="utf-8") != content]
    assert old == [], "run `make docs`, which draws them"


def test_every_key_of_a_configuration_has_a_meaning() -> None:
    for kind in (facts.RunConfig, facts.Settings):
        for line in facts.configuration(kind).splitlines()[2:]:
            assert not line.endswith("|  |"), line


def test_the_home_page_counts_the_methods() -> None:
    assert len(methods.every_name()) > 20
    assert "more than 20 methods" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_links_on_a_git_host_resolve() -> None:
    missing = []
    for page in blocks.pages():
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            file = target.partition("#")[0]
            if file and not re.match(r"[a-z]+:", file) and not (page.parent / file).exists():
                missing.append(f"{page.relative_to(blocks.ROOT)}: {target}")
    assert missing == []


def test_benchmark_commands_name_scripts_and_options_that_exist() -> None:
    for page in blocks.pages():
        for script, options in re.findall(
            r"python (benchmarks/\w+\.py)((?:[^\n`]*\\\n)*[^\n`]*)", page.read_text("utf-8")
        ):
            source = (blocks.ROOT / script).read_text(encoding="utf-8")
            for option in re.findall(r"(?<!\S)--[a-z-]+", options.partition("#")[0]):
                assert f'"{option}"' in source, f"{page.name}: {script} {option}"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.partition("\n")[0].removeprefix("# "))
def test_recipes_pass_the_linter(recipe: str) -> None:
    pytest.importorskip("ruff", reason="install the 'dev' extra")
    path = recipe.partition("\n")[0].removeprefix("# ")
    file = path if path.endswith(".py") and " " not in path else "tests/row.py"  # a row's file has its docstring
    for command in (["check", "--ignore=INP001"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", file, "-"],
            cwd=blocks.ROOT,
            input=recipe.partition("\n")[2],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{file}: {done.stdout}{done.stderr}"
