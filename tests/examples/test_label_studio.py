"""The ML backend, behind the real server of label-studio-ml; skipped where that package is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.evaluate.attempt import make_images

api = pytest.importorskip("label_studio_ml.api", exc_type=ImportError)
FILE = Path(__file__).parents[2] / "examples" / "label_studio" / "model.py"
CONFIG = """<View><Image name="img" value="$image"/><Choices name="kind" toName="img">
<Choice value="cat"/><Choice value="dog"/></Choices></View>"""


@pytest.fixture
def backend(monkeypatch):
    spec = importlib.util.spec_from_file_location("poise_label_studio", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("POISE_MODEL", "tiny")
    monkeypatch.setenv("POISE_DEVICE", "cpu")
    return module


def post(backend, tmp_path, tasks):
    server = api.init_app(model_class=backend.PoiseBackend, model_dir=str(tmp_path), redis_queue=None, redis_host=None)
    client = server.test_client()
    assert client.get("/health").json["status"] == "UP"
    asked = {"tasks": tasks, "project": "1.1", "label_config": CONFIG}
    client.post("/setup", json={"project": "1.1", "schema": CONFIG})
    answer = client.post("/predict", json=asked)
    assert answer.status_code == 200, answer.data
    return answer.json["results"]


def test_a_task_gets_a_choice_with_its_probability(backend, tmp_path, monkeypatch):
    images = make_images(tmp_path / "images", classes=1, each=2)
    monkeypatch.setattr(backend.PoiseBackend, "get_local_path", lambda self, url, **_: url)
    tasks = [{"id": at, "data": {"image": str(images / "class0" / f"{at}.png")}} for at in range(2)]
    (tmp_path / "broken.png").write_bytes(b"no image")
    tasks.append({"id": 2, "data": {"image": str(tmp_path / "broken.png")}})
    first, _, broken = post(backend, tmp_path, tasks)
    (choice,) = first["result"]
    assert choice["value"]["choices"][0] in ("cat", "dog")
    assert (choice["from_name"], choice["to_name"], choice["type"]) == ("kind", "img", "choices")
    assert 0.5 <= first["score"] <= 1
    assert broken["result"] == []


def test_nothing_is_written_where_it_abstains(backend, tmp_path, monkeypatch):
    """Answers that the model is sure of are right and the others wrong, so that a threshold can be certified."""
    import poise

    numbers = np.random.default_rng(0)
    images = [Image.fromarray(numbers.integers(0, 256, (8, 8, 3), dtype=np.uint8)) for _ in range(260)]
    classifier = poise.Classifier(["cat", "dog"], "tiny", "zero-shot", views=1, device="cpu")
    results = classifier(images)
    middle = float(np.quantile([result.confidence for result in results], 0.3))
    other = {"cat": "dog", "dog": "cat"}
    labels = [one.label if one.confidence > middle else other[one.label] for one in results]
    classifier.calibrate(images[:200], labels[:200]).save(tmp_path / "calibration.json")
    monkeypatch.setenv("POISE_CALIBRATION", str(tmp_path / "calibration.json"))
    monkeypatch.setenv("POISE_MAX_ERROR", "0.05")
    monkeypatch.setattr(backend.PoiseBackend, "get_local_path", lambda self, url, **_: url)
    order = sorted(range(200, 260), key=lambda at: results[at].confidence)
    tasks = []
    for name, at in (("unsure", order[0]), ("sure", order[-1])):
        images[at].save(tmp_path / f"{name}.png")
        tasks.append({"id": at, "data": {"image": str(tmp_path / f"{name}.png")}})
    unsure, sure = post(backend, tmp_path, tasks)
    assert unsure["result"] == []
    assert sure["result"][0]["value"]["choices"] == [results[order[-1]].label]
