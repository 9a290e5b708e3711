"""The clients against a real server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from poise.calibration import Calibration
from poise.client import AsyncClient, Client, Reply, http_client, replies
from poise.errors import InvalidLabelsError, PoiseError, RemoteError, ServiceUnavailableError
from poise.inference.classifier import Classifier
from poise.serve.http import schemas
from poise.serve.service import Service
from poise.serve.settings import ServiceSettings
from tests.serve.live import LABELS, HeldService, Live, png, running, settings


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(HeldService(settings(dtype="float64", token="secret"))) as server:
        yield server


def test_answers_equal_those_of_the_classifier(live: Live, tmp_path: Path) -> None:
    image, methods = png(0), ["zero-shot", "kld+cats"]
    file = tmp_path / "image.png"
    file.write_bytes(image)
    expected = Classifier(LABELS, live.service.encoder, methods, views=4, seed=3)(image, details=True)
    with Client(live.url, token="secret") as client:
        assert client.ready()
        for source in (image, file, str(file)):
            reply = client.classify(source, labels=LABELS, methods=methods, views=4, seed=3, details=True)
            assert (reply.model, reply.calibrated, reply.views, reply.seed) == ("tiny", False, 4, 3)
            for name, result in expected.items():
                served = reply.results[name]
                assert served.probabilities == pytest.approx(result.probabilities, abs=1e-9)
                assert (served.label, served.notes) == (result.label, result.notes)
                assert result.details
                assert served.details
                assert served.details.selected_views == result.details.selected_views
        with pytest.raises(PoiseError, match="results of zero-shot, kld"):
            reply.result  # noqa: B018
        (model,) = client.models()
        assert (model.name, model.views, model.limits["labels"]) == ("tiny", 4, 1000)


def test_a_batch_has_an_error_in_the_place_of_a_bad_image(live: Live) -> None:
    with Client(live.url, token="secret") as client:
        replies = client.batch([png(0), b"no image", png(1)], labels=LABELS)
        alone = client.classify(png(1), labels=LABELS).result
    first, bad, last = replies
    assert isinstance(bad, RemoteError)
    assert bad.code == "unreadable_image"
    assert isinstance(first, Reply)
    assert isinstance(last, Reply)
    assert last.result.probabilities == pytest.approx(alone.probabilities, abs=1e-9)


def test_many_requests_at_once(live: Live) -> None:
    async def ask() -> list[Reply]:
        async with AsyncClient(live.url, token="secret") as client:
            assert await client.ready()
            assert len(await client.models()) == 1
            batch = await client.batch([png(0)], labels=LABELS)
            assert isinstance(batch[0], Reply)
            return await asyncio.gather(*(client.classify(png(seed), labels=LABELS) for seed in range(6)))

    replies = asyncio.run(ask())
    classify = Classifier(LABELS, live.service.encoder, views=4)
    for seed, reply in enumerate(replies):
        assert reply.result.probabilities == pytest.approx(classify(png(seed)).probabilities, abs=1e-9)


def test_mistakes_of_python_callers_are_named_in_python() -> None:
    with Client("127.0.0.1:8000") as client:
        with pytest.raises(InvalidLabelsError, match=r"Give a list: labels=\['cat', 'dog'\]"):
            client.classify(png(0), labels="cat,dog")
        with pytest.raises(ServiceUnavailableError) as caught:
            client.models()
    assert ".." not in str(caught.value)


def test_errors_carry_the_servers_words(live: Live) -> None:
    with Client(live.url, token="wrong") as client, pytest.raises(RemoteError) as refused:
        client.classify(png(0), labels=LABELS)
    assert (refused.value.code, refused.value.status) == ("unauthorized", 401)
    with Client(live.url, token="secret") as client, pytest.raises(RemoteError, match="'cat'") as repeated:
        client.classify(png(0), labels=["cat", "cat"])
    assert repeated.value.code == "bad_labels"
    assert repeated.value.request_id


def test_calibrated_answers(tmp_path: Path) -> None:
    images = [png(seed) for seed in range(20)]
    classify = Classifier(["cat", "dog"], "tiny", "zero-shot", device="cpu", views=4)
    calibration: Calibration = classify.calibrate(images, ["cat", "dog"] * 10, coverage=[0.8])
    chosen = ServiceSettings.of_calibration(calibration, device="cpu", coverage=0.8)
    expected = Classifier(
        ["cat", "dog"], "tiny", "zero-shot", device="cpu", views=4, calibration=calibration, coverage=0.8
    )
    with running(Service(chosen)) as server, Client(server.url) as client:
        reply = client.classify(png(99))
    assert reply.calibrated
    assert reply.result.prediction_set == expected(png(99)).prediction_set


class _Busy(BaseHTTPRequestHandler):
    """Answers 429 a few times, then as a stranger."""

    left = 0
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        busy = type(self).left > 0
        type(self).left -= 1
        self.send_response(429 if busy else 200)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *args: Any) -> None:
        pass


FOREIGN = [
    (200, "<html>"),
    (200, "{}"),
    (200, "[]"),
    (200, "null"),
    (200, '{"results": 1, "models": [{}], "items": [{}]}'),
    (200, '{"results": {"a": {}}, "request_id": "", "model": "", "calibrated": true, "views": 1, "seed": 0}'),
    (404, '{"detail": "Not Found"}'),
    (500, '{"error": "out of order"}'),
    (502, ""),
    (400, '{"error": {"message": "x"}}'),
]


@pytest.mark.parametrize(("status", "content"), FOREIGN)
def test_answers_of_other_servers_are_an_error_of_poise(
    status: int, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, text=content)

    monkeypatch.setattr(httpx2, "Client", partial(httpx2.Client, transport=httpx2.MockTransport(answer)))
    with Client("http://127.0.0.1:1") as client:
        for call in (client.models, lambda: client.classify(b"x"), lambda: client.batch([b"x"])):
            with pytest.raises(RemoteError, match="not one of `poise serve`") as caught:
                call()
            assert (caught.value.status, repr(content)[:-1] in str(caught.value)) == (status, True)


class _Hostile(BaseHTTPRequestHandler):
    """Answers with the next of its answers, again and again."""

    status, headers_sent, body = 200, {"Content-Type": "application/json"}, b""

    def do_GET(self) -> None:
        self.send_response(type(self).status)
        for name, value in type(self).headers_sent.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(type(self).body)))
        self.end_headers()
        self.wfile.write(type(self).body)

    def log_message(self, *args: Any) -> None:
        pass


_DEEP = b"[" * 100_000 + b"]" * 100_000
_ROW = b'{"models": [{"name": 1e400, "labels": 1, "methods": {}, "limits": [[[]]]}]}'
_CHARSETS = "zlib hex base64 rot13 bz2 quopri uu idna punycode utf-16 undefined none \u00e9"
_WAITS = ["nan", "-nan", "inf", "-inf", "-1", "1e999", "", "x", "9" * 400]
_BODIES = [_DEEP, b'{"error": ' + _DEEP + b"}", _ROW, b"\xff\xfe", b"\0", b'{"models": ' + b"9" * 5000 + b"}"]
HOSTILE: list[tuple[int, dict[str, str], bytes]] = [
    *((200, {"Content-Type": f"application/json; charset={name}"}, b"\xff{}") for name in _CHARSETS.split()),
    *((429, {"Retry-After": value}, b"{}") for value in _WAITS),
    *((status, {}, body) for status in (200, 500) for body in _BODIES),
    (200, {"Content-Encoding": "gzip"}, b"no gzip"),
    (200, {"Content-Encoding": "deflate"}, b"no deflate"),
    (301, {"Location": "http://[::1/"}, b""),
]


@pytest.mark.parametrize("at", range(len(HOSTILE)))
def test_hostile_answers_are_errors_of_the_client(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _Hostile.status, _Hostile.headers_sent, _Hostile.body = HOSTILE[at]
    pauses: list[float] = []
    monkeypatch.setattr(http_client.time, "sleep", pauses.append)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hostile)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # stops within 10 ms
    try:
        refused = pytest.raises((RemoteError, ServiceUnavailableError))
        with Client(f"http://127.0.0.1:{server.server_port}") as client, refused:
            client.models()
    finally:
        server.shutdown()
        server.server_close()
    assert all(0.1 <= pause <= 30 for pause in pauses)
    assert len(pauses) == (3 if HOSTILE[at][0] == 429 else 0)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (schemas.ClassifyResponse, replies.Reply),
        (schemas.ServedModel, replies.RemoteModel),
    ],
)
def test_the_client_reads_what_the_server_sends(sent: type[BaseModel], read: type[Any]) -> None:
    assert {*sent.model_fields} == {row.name for row in fields(read)}


@pytest.mark.parametrize(("busy", "asked"), [(2, 3), (9, 4)])
def test_busy_servers_are_asked_again(busy: int, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _Busy.left, _Busy.asked = busy, 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Busy)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # stops within 10 ms
    pauses: list[float] = []
    monkeypatch.setattr(http_client.time, "sleep", pauses.append)
    try:
        with Client(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(RemoteError, match="not one of"):
            client.classify(b"x")
    finally:
        server.shutdown()
        server.server_close()
    assert (_Busy.asked, pauses) == (asked, [0.1] * (asked - 1))


def test_the_client_needs_no_model() -> None:
    script = "import poise.client, sys; print(sorted({'torch', 'fastapi', 'numpy', 'pydantic'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_server_that_is_not_there_is_an_error_of_poise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Client(url) as client:
        for call in (client.ready, client.models, lambda: client.classify(png(0))):
            with pytest.raises(ServiceUnavailableError, match="did not answer"):
                call()

    async def ask() -> None:
        async with AsyncClient(url) as client:
            await client.models()

    with pytest.raises(ServiceUnavailableError, match="did not answer"):
        asyncio.run(ask())
