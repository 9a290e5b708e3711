"""README, CONTRIBUTING and the documentation do what they say."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sybil", reason="install the 'test' extra")

from poise import methods, metrics
from poise.backbones.load import models
from poise.data import datasets, readers, schemes
from poise.inference import classifier
from poise.objectives import objectives
from poise.posthoc import posthoc
from poise.rules import rules
from tests.documentation import blocks, warm_command, workspace

PAGES = {path.relative_to(blocks.ROOT).as_posix(): path for path in blocks.pages()}
WITH_BLOCKS = [name for name, page in PAGES.items() if list(blocks.parse(page).examples())]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    workspace.prepare(folder)
    return folder


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the command `poise`."""
    folder = tmp_path_factory.mktemp("bin")
    server = subprocess.Popen(
        [sys.executable, str(Path(warm_command.__file__)), str(folder / "socket")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    warm_command.write_client(folder, folder / "socket")
    for name, does in {"pip": "true", "python": f'"{sys.executable}" "$@"'}.items():  # nothing is installed
        (folder / name).write_text(f"#!/bin/sh\n{does}\n")
        (folder / name).chmod(0o755)
    yield folder
    server.terminate()
    server.wait()
    server.stdout.close()


@pytest.fixture
def page_folder(prepared: Path, commands: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The working directory of one page; what its blocks register is forgotten afterwards."""
    folder = tmp_path / "page"
    folder.mkdir()
    for entry in prepared.iterdir():
        (folder / entry.name).symlink_to(entry)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    for option, value in workspace.OPTIONS.items():
        monkeypatch.setenv(option, value)
    monkeypatch.setattr(classifier, "load_model", functools.cache(classifier.load_model))
    monkeypatch.setitem(classifier.Classifier.__init__.__kwdefaults__, "views", 6)
    registries = (objectives, rules, posthoc, methods.methods, models, datasets, readers, schemes)
    known = [(registry, set(registry.names())) for registry in registries]
    measures = set(metrics.names())
    yield
    for registry, before in known:
        for name in set(registry.names()) - before:
            registry.remove(name)
    for name in set(metrics.names()) - measures:
        metrics.unregister(name)


SLOW = {
    "docs/export.md",  # several exports
    "docs/results.md",  # all figures, and a cache of 100 classes
    "docs/results_frameworks.md",  # five runs with the paper's seven methods on 100 classes
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in WITH_BLOCKS]
)
def test_blocks_run_as_printed(name: str, page_folder: None) -> None:
    blocks.run(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_every_block_has_a_known_language(name: str) -> None:
    assert blocks.other_languages(PAGES[name]) == set()
