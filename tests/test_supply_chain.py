"""Licences of what poise needs, known bad patterns in its code, and the hashes of pinned packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

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
