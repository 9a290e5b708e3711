"""Finished benchmark runs below a folder that the command line named; the page can't name any other."""

from __future__ import annotations

import html
from functools import lru_cache
from pathlib import Path

from poise.demo.markup import alert
from poise.errors import PoiseError
from poise.evaluate.storage.run_folder import run_folders
from poise.report.page.build import page_html
from poise.report.records.runs import load
from poise.report.records.scores import scoreboard

ALL = "all runs together"


def choices(root: Path) -> list[str]:
    """Return the names of the runs in the folder, and a name for all of them if there are several."""
    names = [folder.name for folder in run_folders(root)]
    return [ALL, *names] if len(names) > 1 else names


def run_frame(root: Path, name: str | None) -> str:
    """Return the page of `poise bench page` in a frame of its own, or a message."""
    found = run_folders(root)
    folders = {ALL: root} | {folder.name: folder for folder in found}
    if name not in folders:
        return alert("There is no such run.", "Choose one of the list.")
    try:
        page = _page(folders[name], name, tuple(map(_written, found)))
    except PoiseError as error:
        return alert(error.message, error.hint)
    # In a sandbox: its script may hide and show what the menus choose, and can't reach this page.
    return (
        f'<iframe class="poise-run" title="Benchmark: {html.escape(name)}" sandbox="allow-scripts" '
        f'srcdoc="{html.escape(page)}"></iframe>'
    )


def _written(folder: Path) -> int:
    """Return when a run's ledger was last written, which is after every new file of records."""
    ledger = folder / "ledger.jsonl"
    return ledger.stat().st_mtime_ns if ledger.is_file() else 0


@lru_cache(maxsize=4)
def _page(folder: Path, title: str, written: tuple[int, ...]) -> str:
    """Return the page; ``written`` is in the key of the cache alone, so that a run that goes on has a new page."""
    return page_html(scoreboard(load(folder)), title)
