"""The ML backend of Label Studio: its requests, and images that are read through Label Studio alone."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import poise

FILE = Path(__file__).parents[2] / "examples" / "label_studio.py"
CONFIG = """<View><Image name="img" value="$image"/><Choices name="kind" toName="img">
<Choice value="cat"/><Choice value="dog" alias="d"/></Choices></View>"""
STORED = {"cat": "cat", "dog": "d"}


def png(seed: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


class Studio(BaseHTTPRequestHandler):
    """The parts of Label Studio that give files: for a key, or for the token that a JWT is exchanged for."""

    files: dict[str, bytes]
    seen: list[str | None]

    def do_GET(self) -> None:
        self.seen.append(self.headers.get("Authorization"))
        if self.path.startswith("/tasks/7/resolve/"):
            self.send_response(303)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/data/1.png")
            self.end_headers()
            return
        there = self.path in self.files
        self.send_response(200 if there else 404)
        self.end_headers()
        self.wfile.write(self.files.get(self.path, b""))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"access": f"short-{asked['refresh']}"}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def studio(monkeypatch):
    """A server on this machine, and its class."""
    kind = type("Studio", (Studio,), {"files": {f"/data/{at}.png": png(at) for at in range(3)}, "seen": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # stops within 10 ms
    monkeypatch.setenv("LABEL_STUDIO_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "key")
    monkeypatch.setenv("POISE_MODEL", "tiny")
    monkeypatch.setenv("POISE_DEVICE", "cpu")
    yield kind
    server.shutdown()
    server.server_close()


@pytest.fixture
def backend(monkeypatch):
    spec = importlib.util.spec_from_file_location("poise_label_studio", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def ask(backend, places: list[str]) -> list:
    client = TestClient(backend.app)
    assert client.get("/health").json()["status"] == "UP"
    assert client.post("/setup", json={"schema": CONFIG}).json() == {"model_version": backend.VERSION}
    tasks = [{"id": 7, "data": {"image": place}} for place in places]
    answer = client.post("/predict", json={"tasks": tasks, "label_config": CONFIG, "project": "1.1"})
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def test_a_task_gets_a_choice_with_its_probability(backend, studio):
    studio.files["/data/broken.png"] = b"no image"
    found = ask(backend, ["/data/0.png", "/data/broken.png", "/data/absent.png", "http://example.org/0.png"])
    result = poise.Classifier(["cat", "dog"], "tiny", device="cpu")(png(0))
    ((first,), *others) = found
    (choice,) = first["result"]
    assert choice["value"]["choices"] == [STORED[result.label]]
    assert (choice["from_name"], choice["to_name"], choice["type"]) == ("kind", "img", "choices")
    assert first["score"] == pytest.approx(result.confidence, abs=1e-6)
    assert others == [[], [], []]  # no prediction at all
    assert set(studio.seen) == {"Token key"}


def test_files_of_a_storage_and_personal_tokens(backend, studio, monkeypatch):
    """Label Studio sends to another host for them, which must not get the key."""
    assert backend.read("s3://bucket/1.png", 7) == png(1)
    assert studio.seen == ["Token key", None]
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "a.b.c")
    assert backend.read("/data/2.png", 7) == png(2)
    assert studio.seen[-1] == "Bearer short-a.b.c"
    monkeypatch.setattr(backend, "MAX_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        backend.read("/data/2.png", 7)


def test_nothing_is_written_where_it_abstains(backend, studio, tmp_path, monkeypatch):
    """Answers that the model is sure of are right and the others wrong, so that a threshold can be certified."""
    images = [png(seed) for seed in range(1000, 1260)]
    classifier = poise.Classifier(["cat", "dog"], "tiny", "zero-shot", views=1, device="cpu")
    results = classifier(images)
    middle = float(np.quantile([result.confidence for result in results], 0.3))
    other = {"cat": "dog", "dog": "cat"}
    labels = [one.label if one.confidence > middle else other[one.label] for one in results]
    classifier.calibrate(images[:200], labels[:200]).save(tmp_path / "calibration.json")
    monkeypatch.setenv("POISE_CALIBRATION", str(tmp_path / "calibration.json"))
    monkeypatch.setenv("POISE_MAX_ERROR", "0.05")
    order = sorted(range(200, 260), key=lambda at: results[at].confidence)
    studio.files |= {"/data/unsure.png": images[order[0]], "/data/sure.png": images[order[-1]]}
    unsure, (sure,) = ask(backend, ["/data/unsure.png", "/data/sure.png"])
    assert unsure == []
    assert sure["result"][0]["value"]["choices"] == [STORED[results[order[-1]].label]]
    refused = TestClient(backend.app).post("/setup", json={"schema": CONFIG.replace("cat", "cow")})
    assert refused.status_code == 400
    assert "The calibration is of the labels ['cat', 'dog']" in refused.json()["error"]


@pytest.mark.parametrize("config", ["<View/>", "<View", ""])
def test_a_project_that_it_can_not_answer_is_refused(backend, config):
    assert TestClient(backend.app).post("/setup", json={"schema": config}).status_code == 400
    assert TestClient(backend.app).post("/predict", json={"tasks": [], "label_config": config}).status_code == 400
