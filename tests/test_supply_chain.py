"""Licences of what poise needs, known bad patterns in its code, and the hashes of pinned packages."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from poise.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from tools import licences  # noqa: E402


def test_all_licences_are_on_the_list() -> None:
    found = licences.packages()
    assert len(found) > 30
    assert licences.refused(found) == {}


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0", True),
        ("BSD License; GNU General Public License (GPL)", True),
        ("MIT AND GPL-3.0", False),
        ("GPLv2", False),
        ("LGPL-2.1", False),
        ("unknown", False),
        ("Apache-2.0 AND (MIT OR GPL-2.0)", True),
        ("3-Clause BSD License", True),
    ],
)
def test_what_counts_as_a_permissive_licence(text: str, fine: bool) -> None:
    assert (licences.refused({"package": text}) == {}) == fine


def _extras() -> dict[str, set[str]]:
    """Return the packages of each extra; "" is poise itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {"": project["dependencies"], **project["optional-dependencies"]}
    plain = {name: {re.split(r"[<>=;]", item)[0].strip() for item in items} for name, items in found.items()}
    for items in plain.values():
        for item in [item for item in items if item.startswith("poise[")]:
            for name in item.removeprefix("poise[").rstrip("]").split(","):
                items |= plain[name]
    return plain


def test_install_hints_name_an_extra_that_has_the_package() -> None:
    checked = 0
    for path in (ROOT / "src").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "MissingDependencyError.of"):
                continue
            parts = [*call.args, ast.Constant("")][1:3]
            package, extra = (part.value if isinstance(part, ast.Constant) else None for part in parts)
            if None not in (package, extra):
                brought = {"pandas": "datasets"}.get(str(package), package)  # by one of the extra's own
                assert brought in _extras()[str(extra)], f"{path.name}: {package} is not in '{extra}'"
                checked += 1
    assert checked > 8
    hint = MissingDependencyError.of("The page", "gradio", "demo").hint
    assert "pip install -c constraints.txt '.[demo]'" in hint
    assert "gradio" not in hint


def test_bandit_finds_nothing() -> None:
    command = [sys.executable, "-m", "bandit", "-q", "-r", "src", "-c", "pyproject.toml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:]


def test_hashes_are_those_of_the_pinned_versions() -> None:
    text = (ROOT / "constraints-hashes.txt").read_text()
    hashed = dict(re.findall(r"^(\S+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE))
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    plain = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in hashed.items()}
    missing = {
        name: version for name, version in pinned.items() if plain.get(re.sub(r"[-_.]+", "-", name).lower()) != version
    }
    assert missing == {}
    assert "://" not in text
