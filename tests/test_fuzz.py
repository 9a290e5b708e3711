"""A short run of the fuzzer in tools/fuzz, so that it keeps working; docs/promises.md has the long runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))

from tools.fuzz.edits import Choices, edited_bytes, edited_tree  # noqa: E402
from tools.fuzz.fuzz import TooSlow, fuzz, outcome, timed  # noqa: E402
from tools.fuzz.targets import TARGETS, clean_up  # noqa: E402

SLOW = {"run_folder": 25}  # inputs of targets that take tens of milliseconds each


@pytest.fixture(scope="module", autouse=True)
def _no_files_left():
    yield
    clean_up()


@pytest.mark.parametrize("name", TARGETS)
def test_edited_files_end_in_an_error_of_poise_or_in_none(name: str) -> None:
    assert fuzz(TARGETS[name].run, SLOW.get(name, 250), first_seed=10**6) == {}


@pytest.mark.parametrize("name", TARGETS)
def test_the_file_that_is_edited_is_accepted(name: str) -> None:
    TARGETS[name].read(b"\0")


def test_a_reader_that_catches_all_errors_does_not_hide_that_it_is_slow() -> None:
    def work(data: bytes) -> None:
        with contextlib.suppress(Exception):
            raise TooSlow

    assert outcome(work, b"").startswith("TooSlow")


def test_an_input_is_slow_if_it_is_so_twice() -> None:
    calls: list[bytes] = []

    def work(data: bytes) -> None:
        calls.append(data)
        if len(calls) == 1 or data == b"slow":
            raise TooSlow

    assert outcome(timed(work), b"paused") == ""
    assert outcome(timed(work), b"slow").startswith("TooSlow")
    assert calls == [b"paused", b"paused", b"slow", b"slow"]


def test_edits_are_repeatable_and_change_something() -> None:
    seeds, tree = [bytes(range(50))], {"a": [1, {"b": 2}], "c": "d"}
    data = [bytes([1, second, first, 100, 3, 3, 8]) for first in range(20) for second in range(9)]
    for make in (lambda part: edited_bytes(Choices(part), seeds), lambda part: repr(edited_tree(Choices(part), tree))):
        results = [make(part) for part in data]
        assert results == [make(part) for part in data]
        assert len(set(results)) > 20
    assert edited_bytes(Choices(b""), seeds) == seeds[0]
    assert edited_tree(Choices(b""), tree) == tree
