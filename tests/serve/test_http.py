"""The server over real HTTP: routes, batching, metrics, calibration and tokens."""

from __future__ import annotations

import base64
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from poise import __version__
from poise.errors import ServiceUnavailableError
from poise.inference.classifier import Classifier
from poise.serve import service as service_module
from poise.serve.service import Service
from poise.serve.settings import ServiceSettings
from tests.serve.live import LABELS, SOON, HeldService, Live, body, eventually, png, running, settings


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """In float64, where answers do not depend on the batch by more than 1e-12."""
    with running(HeldService(settings(dtype="float64"))) as server:
        yield server


def test_batched_answers_equal_solo_answers(live: Live) -> None:
    images = [png(seed) for seed in range(8)]
    methods = ["zero-shot", "kld+cats"]
    live.service.gate.clear()
    batches = live.get("/metrics").text
    with ThreadPoolExecutor(8) as pool:
        send = [pool.submit(live.post, "/v1/classify", json=body(image, methods=methods)) for image in images]
        eventually(lambda: live.service.waiting == 8)
        live.service.gate.set()
        answers = [future.result() for future in send]
    assert [answer.status_code for answer in answers] == [200] * 8
    assert (
        _sample(live.get("/metrics").text, "poise_batch_images_count") - _sample(batches, "poise_batch_images_count")
        < 8  # together; how many batches depends on when the queue looks
    )  # the first may have been taken before the others arrived
    classify = Classifier(LABELS, live.service.encoder, methods, views=4)
    for image, answer in zip(images, answers, strict=True):
        for method, result in classify(image).items():
            served = answer.json()["results"][method]
            assert served["probabilities"] == pytest.approx(result.probabilities, abs=1e-6)
            assert list(served["probabilities"]) == list(result.probabilities)
            assert served["label"] == result.label


def test_a_heic_photo_is_named(live: Live) -> None:
    answer = live.post("/v1/classify", json=body(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic"))
    assert answer.status_code == 422
    error = answer.json()["error"]
    assert error["message"] == "The image is HEIC, which is not read."
    assert error["hint"].startswith("Convert it to JPEG")


def test_one_corrupt_image_among_eight_fails_alone(live: Live) -> None:
    images = [png(seed) for seed in range(8)]
    images[3] = images[3][:200]  # its header is intact
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda image: live.post("/v1/classify", json=body(image)), images))
    assert [answer.status_code for answer in answers] == [200] * 3 + [422] + [200] * 4
    assert answers[3].json()["error"]["code"] == "unreadable_image"
    assert answers[3].json()["error"]["message"].endswith("Save or fetch the file again.")  # nothing about Python
    encoded = [base64.b64encode(image).decode() for image in images]
    encoded[5] = "https://example.org/cat.png"
    options = {"labels": LABELS, "views": 4}
    batch = live.post("/v1/batch", json={"images": encoded, **options}).json()
    codes = [item["error"] and item["error"]["code"] for item in batch["items"]]
    assert codes == [None, None, None, "unreadable_image", None, "bad_base64", None, None]
    for at in (0, 1, 2, 4, 6, 7):
        ours, single = batch["items"][at]["results"], answers[at].json()["results"]
        assert ours["kld+cats"]["probabilities"] == pytest.approx(single["kld+cats"]["probabilities"], abs=1e-6)


def test_files_and_base64_give_the_same_answer(live: Live) -> None:
    fields = {"labels": LABELS, "methods": ["zero-shot"], "views": "2", "details": "true", "seed": "7"}
    form = live.post("/v1/classify", files={"image": png(0)}, data=fields)
    sent = body(png(0), methods=["zero-shot"], views=2, details=True, seed=7)
    json = live.post("/v1/classify", json=sent).json()
    assert form.status_code == 200, form.text
    assert form.json()["results"] == json["results"]
    assert (form.json()["views"], form.json()["seed"], form.json()["calibrated"]) == (2, 7, False)
    assert len(json["results"]["zero-shot"]["details"]["view_confidences"]) == 2
    files = [("images", png(0)), ("images", png(1))]
    batch = live.post("/v1/batch", files=files, data=fields).json()
    assert batch["items"][0]["results"]["zero-shot"]["label"] == json["results"]["zero-shot"]["label"]
    assert len(batch["items"]) == 2


def test_large_files_are_never_written_to_a_disk(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have no folder that can be written to."""

    def no_folder(*given: Any) -> None:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_folder)
    image = png(0, size=900)
    assert len(image) > 2_000_000
    answer = live.post("/v1/classify", files={"image": image}, data={"labels": LABELS, "methods": "zero-shot"})
    assert answer.status_code == 200, answer.text


def test_one_label_is_refused(live: Live) -> None:
    form = live.post("/v1/classify", files={"image": png(0)}, data={"labels": "cat,dog"})
    assert (form.status_code, form.json()["error"]["code"]) == (422, "bad_labels")
    assert "The field 'labels' is given once, as 'cat,dog'." in form.json()["error"]["message"]
    assert "-F labels=cat -F labels=dog" in form.json()["error"]["hint"]
    sent = {"inputs": base64.b64encode(png(0)).decode(), "parameters": {"candidate_labels": ["cat"]}}
    others = [
        live.post("/v1/classify", json={**body(png(0)), "labels": ["cat"]}),
        live.post("/v1/zero-shot-image-classification", json=sent),
    ]
    for answer in others:
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_labels")
        assert "at least two labels" in answer.json()["error"]["hint"]


def test_a_request_is_planned_once_and_takes_its_classifier_once(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()

    def counted(name: str, call: Any) -> Any:
        return lambda *given, **options: counts.update([name]) or call(*given, **options)

    monkeypatch.setattr(service_module, "plan", counted("plan", service_module.plan))
    monkeypatch.setattr(live.service.cache, "get", counted("cache", live.service.cache.get))
    assert live.post("/v1/classify", json=body(png(0))).status_code == 200
    assert counts == {"plan": 1, "cache": 1}


def test_the_shape_of_hugging_face(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # the client talks to this machine only
    path = "/v1/zero-shot-image-classification"
    parameters = {"candidate_labels": LABELS, "hypothesis_template": "a drawing of a {}."}
    sent = {"inputs": base64.b64encode(png(0)).decode(), "parameters": parameters}
    answer = live.post(path, json=sent)
    assert answer.headers["x-poise-calibrated"] == "false"
    rows = answer.json()
    # As transformers.pipeline("zero-shot-image-classification") returns it for one image.
    assert [set(row) for row in rows] == [{"score", "label"}] * 3
    assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
    expected = Classifier(LABELS, live.service.encoder, views=4, template="a drawing of a {}.")(png(0))
    assert {row["label"]: row["score"] for row in rows} == pytest.approx(expected.probabilities, abs=1e-6)
    client = huggingface_hub.InferenceClient(model=live.url + path, timeout=SOON)
    scored = client.zero_shot_image_classification(
        png(0), candidate_labels=LABELS, hypothesis_template="a drawing of a {}."
    )
    assert [(row.label, row.score) for row in scored] == [(row["label"], row["score"]) for row in rows]


def test_request_ids(live: Live) -> None:
    assert live.get("/live", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    answer = live.post("/v1/classify", json={}, headers={"X-Request-Id": "a b\x7f" * 30})
    assert len(answer.headers["x-request-id"]) == 32
    assert answer.json()["error"]["request_id"] == answer.headers["x-request-id"]


def test_metrics(live: Live) -> None:
    before = live.get("/metrics").text
    assert live.post("/v1/classify", json=body(png(1), labels=["secret label", "b"])).status_code == 200
    live.get("/nothing/to-see")
    text = live.get("/metrics").text
    names = (
        "poise_requests_total",
        "poise_request_seconds",
        "poise_stage_seconds",
        "poise_queue_items",
        "poise_queue_cost",
        "poise_queue_cost_limit",
        "process_resident_memory_bytes",
        "poise_batch_images",
        "poise_rejected_total",
        "poise_fallback_total",
        "poise_confidence",
        "poise_abstained_total",
        "poise_model_info",
    )
    assert all(f"# HELP {name.removesuffix('_total')}" in text for name in names)
    route = 'poise_requests_total{code="200",route="/v1/classify"}'
    assert _sample(text, route) - _sample(before, route) == 1
    assert _sample(text, "poise_confidence_count") - _sample(before, "poise_confidence_count") == 1
    assert 'route="other"' in text
    assert 'model="tiny"' in text
    assert not any(word in text for word in ("secret", "nothing"))
    assert "poise_exchangeability_evidence" not in text  # it has no calibration
    assert (_sample(text, "poise_queue_cost"), _sample(text, "poise_queue_cost_limit")) == (0, 8192)


def test_models(live: Live) -> None:
    (model,) = live.get("/v1/models").json()["models"]
    assert (model["name"], model["views"], model["calibrated"]) == ("tiny", 4, False)
    assert model["limits"]["labels"] == 1000
    assert (model["version"], model["calibration"], model["coverage"]) == (__version__, None, None)


def test_health_can_be_asked_without_a_body(live: Live) -> None:
    with live.client() as client:
        assert [client.head(path).status_code for path in ("/live", "/ready")] == [200, 200]


def test_a_server_is_ready_only_between_its_check_and_its_end() -> None:
    service = HeldService(settings())
    service.gate.clear()  # the test image waits
    with running(service, wait=False) as live:
        eventually(lambda: service.waiting == 1)
        assert (live.get("/live").status_code, live.get("/ready").status_code) == (200, 503)
        refused = live.post("/v1/classify", json=body(png(0)))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        service.gate.set()
        eventually(lambda: live.get("/ready").status_code == 200)
        service.stop()
        assert (live.get("/live").status_code, live.get("/ready").status_code) == (200, 503)
        assert live.post("/v1/classify", json=body(png(0))).status_code == 503


def test_a_wrong_answer_for_the_test_image_keeps_a_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.serve.readiness.STORED", {"tiny": {"zero-shot": (0.1, 0.2, 0.7)}})
    service = Service(settings())
    with pytest.raises(Exception, match="differs from the stored answer") as caught:
        service.start()
    assert getattr(caught.value, "code", "") == "golden_check_failed"
    assert not service.ready
    service.close()


def test_a_failed_start_ends_the_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.serve.readiness.STORED", {"tiny": {"zero-shot": (0.1, 0.2, 0.7)}})
    service = Service(settings())
    with running(service, wait=False) as live:
        eventually(lambda: live.app.state.failure is not None and service.status == "draining")


def test_a_stop_during_the_start_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(settings())

    def stopped(*options: Any, **more: Any) -> None:
        service.stop()
        raise ServiceUnavailableError("The server is shutting down.")

    monkeypatch.setattr(service_module, "load_model", stopped)
    with running(service, wait=False) as live:
        eventually(lambda: service.status == "draining")
    assert live.app.state.failure is None


def test_a_token(live: Live) -> None:
    with running(Service(settings(token="s3cr\u00e9t"))) as guarded:
        assert guarded.get("/live").status_code == guarded.get("/ready").status_code == 200
        for header, said in {"": "needs a token", "Bearer": "needs a token", "Bearer wrong": "token is wrong"}.items():
            headers = {"Authorization": header} if header else {}
            assert said in guarded.get("/v1/models", headers=headers).json()["error"]["message"]
        for header in ("", "s3cret", "Bearer wrong", "Bearer", "Basic s3cr\u00e9t", "Bearer s3cr\u00e9t"):
            headers = {"Authorization": header.encode("latin-1")} if header else {}
            for path in ("/v1/models", "/metrics", "/openapi.json"):
                answer = guarded.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer s3cr\u00e9t".encode()}  # in UTF-8, as files and the environment have it
        assert guarded.get("/v1/models", headers=right).status_code == 200
    assert "s3cret" not in repr(settings(token="s3cret"))


@pytest.fixture(scope="module")
def calibrated() -> Iterator[Live]:
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16, 3), np.uint8)
    classify = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu", views=4)
    calibration = classify.calibrate(list(images), ["cat", "dog"] * 30, coverage=[0.9])
    with running(Service(ServiceSettings.of_calibration(calibration, device="cpu", coverage=0.9))) as server:
        yield server


def test_a_calibrated_server(calibrated: Live) -> None:
    image = base64.b64encode(png(99)).decode()
    sent = calibrated.post("/v1/classify", json={"image": image})
    assert float(sent.headers["x-poise-evidence"]) > 0
    assert _sample(calibrated.get("/metrics").text, "poise_exchangeability_evidence") > 0
    answer = sent.json()
    (result,) = answer["results"].values()
    assert answer["calibrated"] is True
    assert result["prediction_set"]
    assert result["raw_confidence"] is not None
    (model,) = calibrated.get("/v1/models").json()["models"]
    assert (model["labels"], model["coverage"], model["max_error"]) == (["cat", "dog"], 0.9, None)
    stored = calibrated.service.settings.calibration.to_dict()["checksum"]
    assert model["calibration"] == stored
    assert f'calibration="{stored}"' in calibrated.get("/metrics").text
    assert f'version="{__version__}"' in calibrated.get("/metrics").text


def test_probes_without_calibration_are_not_counted(calibrated: Live) -> None:
    image = base64.b64encode(png(99)).decode()
    before = _sample(calibrated.get("/metrics").text, "poise_exchangeability_evidence")
    for _ in range(3):
        assert calibrated.post("/v1/classify", json={"image": image, "uncalibrated": True}).status_code == 200
    assert _sample(calibrated.get("/metrics").text, "poise_exchangeability_evidence") == before


def test_a_server_notices_other_images(calibrated: Live) -> None:
    """It was calibrated with brighter ones."""
    before = _sample(calibrated.get("/metrics").text, "poise_exchangeability_evidence")
    images = [base64.b64encode(png(seed, darker=16)).decode() for seed in range(24)]
    for some in (images[:12], images[12:]):
        sent = calibrated.post("/v1/batch", json={"images": some})
        assert sent.status_code == 200, sent.text
    assert float(sent.headers["x-poise-evidence"]) > 10 * before


@pytest.mark.parametrize("change", [{"labels": ["cat", "cow"]}, {"labels": ["dog", "cat"]}, {"template": "{}"}])
def test_other_labels_are_answered_without_calibration_only_if_asked_for(
    calibrated: Live, change: dict[str, Any]
) -> None:
    sent = {"image": base64.b64encode(png(99)).decode(), **change}
    refused = calibrated.post("/v1/classify", json=sent)
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "bad_calibration")
    assert "uncalibrated" in refused.json()["error"]["hint"]
    answer = calibrated.post("/v1/classify", json={**sent, "uncalibrated": True})
    assert answer.status_code == 200, answer.text
    assert answer.json()["calibrated"] is False
    assert "x-poise-evidence" not in answer.headers
    (result,) = answer.json()["results"].values()
    assert result["raw_confidence"] is None
    assert result["prediction_set"] is None
    both = calibrated.post("/v1/classify", json={**sent, "uncalibrated": True, "coverage": 0.9})
    assert (both.status_code, both.json()["error"]["code"]) == (422, "invalid_option")


def _sample(text: str, name: str) -> float:
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)
