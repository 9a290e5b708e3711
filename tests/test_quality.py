"""Lint, types, layers and imports, as tests: one command checks everything."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import poise

ROOT = Path(__file__).parents[1]
CODE = ("src", "tests", "benchmarks", "tools", "docs", "examples")
CHECKS = {
    "lint": ["ruff", "check", *CODE],
    "format": ["ruff", "format", "--check", *CODE],
    "types": ["mypy"],
}


@pytest.mark.parametrize("check", CHECKS)
def test_static_check(check: str) -> None:
    pytest.importorskip(CHECKS[check][0], reason="install the 'dev' extra")
    done = subprocess.run([sys.executable, "-m", *CHECKS[check]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_layers() -> None:
    pytest.importorskip("importlinter", reason="install the 'dev' extra")
    code = "from importlinter.cli import lint_imports_command as main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [module.name for module in pkgutil.walk_packages(poise.__path__, "poise.")])
def test_every_module_imports(name: str) -> None:
    importlib.import_module(name)


def imported(file: Path) -> set[tuple[str, str]]:
    """The modules of poise that a program imports, and the names that it takes from them."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "__name__") for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {(str(node.module), alias.name) for alias in node.names}
    return {(module, name) for module, name in found if module.split(".")[0] == "poise"}


def exists(module: str, name: str) -> bool:
    try:
        if importlib.util.find_spec(module) is None:
            return False
    except ModuleNotFoundError:  # a parent of the module does not exist
        return False
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("folder", ["benchmarks", "tools", "docs", "examples"])
def test_programs_beside_the_package_import_what_exists(folder: str) -> None:
    """Most of them are not run by tests, so that a name that was removed would not be noticed."""
    missing = {
        f"{file.relative_to(ROOT)}: from {module} import {name}"
        for file in (ROOT / folder).rglob("*.py")
        for module, name in imported(file)
        if not exists(module, name)
    }
    assert not missing


def test_help_is_free_of_torch() -> None:
    """`poise --help` answers at once because nothing heavy is imported."""
    code = (
        "import sys, runpy; sys.argv = ['poise', '--help']\n"
        "from poise.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'open_clip', 'pyarrow', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.returncode == 0, done.stderr
    assert "classify" in done.stdout


def test_public_surface_is_small() -> None:
    assert len(poise.__all__) <= 16
    for name in poise.__all__:
        assert getattr(poise, name) is not None
    with pytest.raises(AttributeError, match="no attribute"):
        poise.nothing  # noqa: B018


def test_no_registry_host_or_machine_path_is_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    forbidden = ["index-" + "url", "/root" + "/", "pypi." + "org"]
    for name in listed.stdout.split():
        path = ROOT / name
        if not path.is_file() or path.suffix in {".safetensors", ".png", ".parquet", ".gz"}:
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        assert not [word for word in forbidden if word in text], name
