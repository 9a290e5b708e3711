"""The second tab shows the runs of one folder, and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from poise.demo import run_pages
from tests.report import made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    made.write_run(folder, run="first", datasets=("caltech101",), methods=("zero-shot", "kld+cats"), seeds=(1,))
    return folder


def test_the_page_of_a_run_is_in_a_sandbox(root: Path) -> None:
    assert run_pages.choices(root) == ["first"]
    frame = run_pages.run_frame(root, "first")
    assert frame.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in frame
    assert frame.count("<") == 2  # the page itself is escaped


def test_a_run_that_goes_on_has_a_new_page(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="first", datasets=("caltech101",), methods=("zero-shot",), seeds=(1,))
    before = run_pages.run_frame(tmp_path, "first")
    shutil.rmtree(tmp_path / "first")
    made.write_run(tmp_path, run="first", datasets=("caltech101", "dtd"), methods=("zero-shot",), seeds=(1,))
    ledger = tmp_path / "first" / "ledger.jsonl"
    os.utime(ledger, ns=(1, 1))  # another time than before, however coarse the clock of the disk is
    assert run_pages.run_frame(tmp_path, "first") != before


def test_several_runs_can_be_seen_together(root: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    assert run_pages.choices(tmp_path) == [run_pages.ALL, "first", "second"]
    assert 'role="alert"' in run_pages.run_frame(tmp_path, "first")  # it has no records


@pytest.mark.parametrize("name", [None, "", "..", "../first", "/etc", "second"])
def test_other_paths_are_refused(root: Path, name: str | None) -> None:
    assert "no such run" in run_pages.run_frame(root, name)
