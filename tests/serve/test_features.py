"""Features that were stored before, sent to a server instead of images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from poise.client import Client
from poise.data.opening import open_images
from poise.data.packed_features import PackedRow, is_packed, pack, unpack
from poise.data.stored_features import FeatureRow, StoredRow
from poise.errors import InvalidDatasetError, InvalidOptionError, RemoteError
from poise.jobs.run import Engine, run
from poise.jobs.workers import EmbedJob
from poise.serve.service import Service
from poise.serve.settings import Job
from poise.views import ViewRecipe
from tests.serve.live import SOON, png, running, settings


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[StoredRow]:
    """Three images with four views each, and a file that is none."""
    folder = tmp_path_factory.mktemp("features")
    for at in range(3):
        (folder / f"{at}.png").write_bytes(png(at))
    (folder / "3.png").write_bytes(b"text")
    run(EmbedJob(str(folder / "f"), "tiny", "cpu", recipe=ViewRecipe(4)), open_images([str(folder)]), Engine())
    return [FeatureRow(str(folder / "f" / "part-000000.parquet"), row) for row in range(4)]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    made = Service(settings(labels=("cat", "dog")))
    made.start()
    yield made
    made.close()


def test_features_are_answered_as_their_images_are(service: Service, stored: list[StoredRow]) -> None:
    job = Job(methods=("zero-shot", "kld+cats", "zero"))
    sent = service.submit_all([pack(row) for row in stored[:3]], job)
    images = service.submit_all([png(at) for at in range(3)], job)
    for ours, theirs in zip(sent, images, strict=True):
        for name, result in theirs.result(SOON).items():
            assert ours.result(SOON)[name].confidence == pytest.approx(result.confidence, abs=5e-3)
            assert ours.result(SOON)[name].source == "<features>"


def test_features_that_are_refused(service: Service, stored: list[StoredRow]) -> None:
    row = unpack(pack(stored[0]))

    def refusal(row: PackedRow, **options: object) -> BaseException | None:
        return service.submit(pack(row), Job(**options)).exception(SOON)  # type: ignore[arg-type]

    other = replace(row.held, made=replace(row.held.made, fingerprint="0" * 32))
    error = refusal(PackedRow(other))
    assert isinstance(error, InvalidOptionError)
    assert "0" * 32 in str(error)
    assert row.held.made.fingerprint in str(error)
    assert "8 views were asked for, and the features have 4 views per image" in str(refusal(row, views=8))
    narrow = PackedRow(replace(row.held, features=row.held.features[..., :5]))
    assert "The features have 5 numbers" in str(refusal(narrow))
    with pytest.raises(InvalidOptionError, match="images and features"):
        service.submit_all([png(0), pack(row)], Job())
    with pytest.raises(InvalidDatasetError, match="has no features"):
        pack(stored[3])


def test_bytes_that_are_no_features(stored: list[StoredRow]) -> None:
    content = pack(stored[0])
    assert is_packed(content)
    assert not is_packed(png(0))
    endless = unpack(content).held.features.copy()
    endless[0, 0, 0] = np.inf
    worse = pack(PackedRow(replace(unpack(content).held, features=endless)))
    for damaged in (
        content[:-1],
        content[:40],
        worse,
        content.replace(b"F16", b"I16"),
        content.replace(b"shape", b"sharp"),
    ):
        with pytest.raises(InvalidDatasetError):
            unpack(damaged)


def test_features_over_http(stored: list[StoredRow]) -> None:
    content = pack(stored[0])
    with running(Service(settings(labels=("cat", "dog")))) as live, Client(live.url) as client:
        assert client.classify(content, methods=["zero-shot"]).result.label in ("cat", "dog")
        first, second = client.batch([content, content[:-1]], methods=["zero-shot"])
        assert not isinstance(first, RemoteError)
        assert isinstance(second, RemoteError)
        assert second.code == "bad_dataset"
