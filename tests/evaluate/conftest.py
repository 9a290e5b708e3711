"""Fixtures of whole runs on the tiny model and generated images."""

from __future__ import annotations

import pytest

from poise.backbones import load_model
from poise.evaluate import worker
from poise.evaluate.run import run
from poise.evaluate.storage import header
from tests.evaluate.attempt import make_images
from tests.evaluate.small_run import configure


@pytest.fixture
def one_commit(monkeypatch):
    monkeypatch.setattr(header, "commit", lambda: "0")


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "images", classes=3, each=3)


@pytest.fixture(scope="module")
def clean(image_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("clean")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(header, "commit", lambda: "0")
        summary = run(*configure(image_folder, out))
    assert (summary.images, summary.errors, summary.computed) == (18, 0, 6)
    return out


@pytest.fixture
def watched(monkeypatch):
    """A way to wrap the tiny encoder's image tower before a run loads it."""

    def wrap(change):
        encoder = load_model("tiny", device="cpu")
        monkeypatch.setattr(encoder, "encode_images", change(encoder.encode_images), raising=False)
        monkeypatch.setattr(worker.backbones, "load_model", lambda name, **options: encoder)

    return wrap
