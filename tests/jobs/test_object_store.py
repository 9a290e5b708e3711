"""Shards read from and parts written to an object store with S3's interface, which fails in several ways.

The server is moto's, started here on the loopback address (`pip install 'moto[server]'`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poise import filesystems
from poise.cli.app import app
from poise.errors import StorageError
from poise.filesystems import list_files, write_whole
from poise.jobs.collect import read_rows
from tests.data.test_sources import write_shard
from tests.evaluate.attempt import make_images

moto = pytest.importorskip("moto.server", reason="install moto[server]")
serving = pytest.importorskip("werkzeug.serving", reason="install moto[server]")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Store:
    """The server, with a function that may answer instead of it."""

    def __init__(self) -> None:
        backend = moto.DomainDispatcherApplication(moto.create_backend_app)
        self.fault: Callable[[str, str], str] = lambda method, path: ""
        self.seen: Counter[str] = Counter()

        def application(environment: Any, start: Any) -> Any:
            method, path = environment["REQUEST_METHOD"], environment["PATH_INFO"]
            fault = self.fault(method, path)
            self.seen[fault] += 1
            if fault in ("500", "503", "403"):
                code = {"500": "InternalError", "503": "SlowDown", "403": "AccessDenied"}[fault]
                start(f"{fault} {code}", [("Content-Type", "application/xml")])
                return [f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()]
            body = backend(environment, start)
            if fault == "cut":
                content = b"".join(body)
                return iter([content[: len(content) // 2]])  # shorter than its Content-Length: the connection ends
            if fault == "slow":
                threading.Event().wait(0.3)
            return body

        self.server = serving.make_server("127.0.0.1", 0, application, threaded=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    made = Store()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{made.server.server_port}")
    for name, value in {"ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(filesystems, "PAUSE", 0.01)
    filesystems._of_pyarrow.cache_clear()
    import boto3

    boto3.client("s3").create_bucket(Bucket="bucket")
    yield made
    made.server.shutdown()
    filesystems._of_pyarrow.cache_clear()


@pytest.fixture
def tars(store: Store, tmp_path: Path) -> Path:
    images = make_images(tmp_path / "images", classes=3, each=3)
    for number in range(3):
        files = {f"{at}.png": (images / f"class{number}" / f"{at}.png").read_bytes() for at in range(3)}
        write_shard(tmp_path / f"{number}.tar", files)
        write_whole(f"s3://bucket/in/{number}.tar", (tmp_path / f"{number}.tar").read_bytes())
    return tmp_path


def classified(source: str, out: str, *more: str) -> Any:
    plain = ["--labels", "cat,dog", "--model", "tiny", "--method", "zero-shot", "--device", "cpu", "--quiet"]
    return CliRunner().invoke(app, ["classify", source, *plain, "--out", out, *more])


def rows(folder: str) -> list[dict[str, Any]]:
    return [row for batch in read_rows(folder)[1] for row in batch.to_pylist()]


def test_rows_are_those_of_local_shards_while_requests_fail(store: Store, tars: Path) -> None:
    assert classified(f"wds:{tars}/{{0..2}}.tar", f"{tars}/local/").exit_code == 0
    requests = iter(["500", "", "cut", "slow", "", "503", ""] * 1000)
    store.fault = lambda method, path: next(requests) if method == "GET" else ""
    done = classified("wds:s3://bucket/in/*.tar", "s3://bucket/out/")
    assert done.exit_code == 0, (done.output, done.exception)
    store.fault = lambda method, path: ""
    assert min(store.seen[fault] for fault in ("500", "cut", "slow")) >= 1
    assert rows("s3://bucket/out/") == rows(f"{tars}/local/")
    assert list(list_files("s3://bucket/out/_ledger")) == [f"part-00000{number}.json" for number in range(3)]


def test_a_shard_that_stays_away_is_reported_and_resumed(store: Store, tars: Path) -> None:
    store.fault = lambda method, path: "503" if path.endswith("/1.tar") and method in ("GET", "HEAD") else ""
    source = "wds:s3://bucket/in/{0..2}.tar"
    done = classified(source, "s3://bucket/again/")
    assert done.exit_code == 3, (done.output, done.exception)
    assert "the shard '1.tar' is not done" in done.stderr
    store.fault = lambda method, path: ""
    assert classified(source, "s3://bucket/again/", "--resume").exit_code == 0
    assert len(rows("s3://bucket/again/")) == 9


def test_photos_in_a_bucket_become_features_and_answers(store: Store, tars: Path) -> None:
    for at in range(2):
        write_whole(f"s3://bucket/photos/camera{at}/a.png", (tars / "images" / "class0" / f"{at}.png").read_bytes())
    plain = ["--model", "tiny", "--device", "cpu", "--quiet", "--out", "s3://bucket/features"]
    assert CliRunner().invoke(app, ["embed", "s3://bucket/photos", *plain]).exit_code == 0
    assert classified("s3://bucket/features", f"{tars}/answers/").exit_code == 0
    expected = [f"s3://bucket/photos/camera{at}/a.png" for at in range(2)]
    assert [row["source"] for row in rows(f"{tars}/answers/")] == expected


def test_a_bucket_that_may_not_be_written(store: Store, tars: Path) -> None:
    store.fault = lambda method, path: "403" if method in ("PUT", "POST") else ""
    done = classified("wds:s3://bucket/in/*.tar", "s3://bucket/never/")
    assert isinstance(done.exception, StorageError)
    assert "Can't write 's3://bucket/never/_manifest.json'" in str(done.exception)
