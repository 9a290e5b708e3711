"""The recipe of CONTRIBUTING for a method, followed as printed in a copy of the repository: its checks pass."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.blocks import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PAGE = "docs/methods/kld-agreement.md"


def printed(name: str) -> str:
    """The block that begins with this name, without that line."""
    (found,) = re.findall(rf"```python\n# {re.escape(name)}\n(.*?)```", TEXT, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the recipes for an objective and for a method were followed."""
    copy = tmp_path_factory.mktemp("copy") / "repository"
    large = shutil.ignore_patterns("weights", "__pycache__", "project", "gallery")
    for folder in ("src", "docs", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=large)
    weights = Path("src", "poise", "backbones", "weights")
    (copy / weights).symlink_to(ROOT / weights)
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, copy / name)
    names = (
        "src/poise/objectives/agreement.py",
        "tests/objectives/test_agreement.py",
        "tests/test_agreement_method.py",
    )
    for name in names:
        (copy / name).write_text(printed(name), encoding="utf-8")
    row = printed("a row of src/poise/methods/peers.py")
    imports, _, row = row.partition("\n\n")
    peers = copy / "src" / "poise" / "methods" / "peers.py"
    assert set(re.findall(r"\w+", imports.partition(" import ")[2])) <= set(
        re.findall(r"\w+", peers.read_text("utf-8"))
    )
    peers.write_text(f"{peers.read_text('utf-8')}\n{row}", encoding="utf-8")
    (page,) = re.findall(rf"`{re.escape(PAGE)}`:\n```text\n(.*?)```", TEXT, re.DOTALL)
    (copy / PAGE).write_text(page, encoding="utf-8")
    run(copy, "docs/facts.py")
    return copy


def run(folder: Path, *command: str) -> None:
    path = os.pathsep.join([str(folder / "src"), str(folder)])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTEST_ADDOPTS": ""},  # the outer run may measure its coverage
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_method_that_is_added_as_printed_passes_the_checks(repository: Path) -> None:
    assert "divergence + 0.5 x agreement" in (repository / PAGE).read_text("utf-8")
    assert "](kld-agreement.md)" in (repository / "docs" / "methods" / "index.md").read_text("utf-8")
    names = ["tests/test_agreement_method.py", "tests/objectives/test_agreement.py", "tests/test_methods.py"]
    site = ["tests/documentation/test_site.py", "-k", "page or facts"]
    run(repository, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names, *site)


def test_it_is_formatted(repository: Path) -> None:
    pytest.importorskip("ruff", reason="install the 'dev' extra")
    run(repository, "-m", "ruff", "check", "src", "tests")
    run(repository, "-m", "ruff", "format", "--check", "src", "tests")
