"""The page of promises names tests that exist, and all forty failure modes."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text("utf-8")


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/\S+?\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    for file, name in named:
        assert re.search(rf"^ *def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE), f"{file}::{name}"


def test_every_failure_mode_has_a_verdict() -> None:
    rows = re.findall(r"^\| (\d+) \| [^|]+ \| (holds|in part|no server)[^|]* \|([^|]*)\|$", PAGE, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 41))
    for number, verdict, test in rows:
        assert (verdict == "no server") == (not test.strip()), number


def test_every_row_of_the_promises_has_a_proof() -> None:
    table = PAGE.partition("## Promises")[2].partition("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and "promise |" not in line]
    assert len(rows) > 10
    assert all("::test_" in row for row in rows)
