"""The service without HTTP: its cache of label sets, its limits, and jobs that are refused before they are queued."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from poise.errors import (
    InvalidLabelsError,
    InvalidOptionError,
    LimitExceededError,
    PoiseError,
    ServiceUnavailableError,
    UnknownNameError,
)
from poise.inference.classifier import Classifier
from poise.serve.limits import Limits
from poise.serve.service import Service
from poise.serve.settings import Job
from tests.serve.live import SOON, HeldService, png, settings


@pytest.fixture(scope="module")
def service() -> Iterator[HeldService]:
    made = HeldService(settings(labels=("cat", "dog"), limits=Limits(label_sets=3, cached_labels=9, queue=64)))
    made.start()
    yield made
    made.close()


def test_defaults_are_those_of_the_server(service: HeldService) -> None:
    answers = service.submit(png(0), Job()).result(60)
    assert list(answers) == ["kld+cats"]
    assert set(answers["kld+cats"].probabilities) == {"cat", "dog"}
    planned = service.plan(Job(methods=("zero-shot", "kld"), views=3))
    assert (planned.cost, planned.seconds, planned.options.seed) == (3, 60.0, 0)
    assert service.plan(Job(methods=("zero-shot",))).cost == 1
    assert service.plan(Job(methods=("zero-shot",), details=True)).cost == 4
    assert service.plan(Job(methods=("kld", "tpt"), views=3)).cost == 6


def test_label_sets_that_were_used_last_are_kept(service: HeldService) -> None:
    def made(labels: str, **more: Any) -> Classifier:
        return service.classifier(service.plan(Job(labels=tuple(labels), **more)))

    first, second, third = made("ab"), made("ba"), made("efgh")  # 8 labels in 3 sets
    assert second is not first
    assert made("ab", deadline=1.0, details=True) is first
    last = made("xy")
    assert [made("efgh"), made("ab"), made("xy")] == [third, first, last]
    assert made("ba") is not second  # it was the oldest of four sets
    large = made("qrstuvw")
    assert made("qrstuvw") is large
    assert made("ab") is not first  # the labels of all sets together are bounded, too
    larger = made("abcdefghijk")
    assert made("abcdefghijk") is larger  # one is always kept
    assert made("qrstuvw") is not large


def test_labels_are_encoded_once_for_all_views_and_seeds() -> None:
    asked: dict[str, Any] = {"labels": ("cat", "dog"), "methods": ("zero-shot", "kld+cats")}
    service = Service(settings(dtype="float64"))
    service.start()
    drawn = ({"views": 4, "seed": 0}, {"views": 3, "seed": 0}, {"views": 4, "seed": 7})
    made = [service.classifier(service.plan(Job(**views, **asked))) for views in drawn]
    assert len({id(row) for row in made}) == 3
    assert len({id(row.tuner) for row in made}) == 1
    assert service.classifier(service.plan(Job(template="a {}", **drawn[0], **asked))).tuner is not made[0].tuner
    for views in drawn:
        served = service.submit(png(0), Job(**views, **asked)).result(SOON)
        plain = Classifier(asked["labels"], service.encoder, list(asked["methods"]), **views)
        for name, result in plain(png(0)).items():
            assert served[name].probabilities == pytest.approx(result.probabilities, abs=1e-9)
    service.close()


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (Job(labels=("cat", "cat")), InvalidLabelsError),
        (Job(methods=("none such",)), UnknownNameError),
        (Job(views=65), LimitExceededError),
        (Job(coverage=0.9), PoiseError),
        (Job(views=33, methods=("kld", "tpt")), LimitExceededError),
    ],
)
def test_a_bad_job_is_refused_before_it_is_queued(service: HeldService, job: Job, error: type[PoiseError]) -> None:
    with pytest.raises(error):
        service.submit(png(0), job)
    assert service.waiting == 0


def test_an_image_that_cannot_be_read_fails_in_its_future(service: HeldService) -> None:
    good, header, damaged = service.submit_all([png(0), b"no image", png(1)[:150]], Job())
    assert good.exception(60) is None
    for future in (header, damaged):
        assert getattr(future.exception(60), "code", "") == "unreadable_image"


def test_a_service_answers_between_start_and_close() -> None:
    service = Service(settings())
    with pytest.raises(ServiceUnavailableError, match="starting"):
        service.submit(png(0), Job(labels=("cat",)))
    service.start()
    service.start()
    future = service.submit(png(0), Job(labels=("cat", "dog")))
    service.close()
    assert future.result(0)["kld+cats"].label in ("cat", "dog")
    with pytest.raises(ServiceUnavailableError, match="closed"):
        service.submit(png(0), Job(labels=("cat",)))


@pytest.mark.parametrize(
    "changes",
    [
        {"limits": Limits(labels=2, methods=1, pixels=1000, queue=3), "method": ("zero-shot",)},
        {"limits": Limits(views=1), "views": 1, "method": ("zero-shot",)},
        {"context": "none", "method": ("zero-shot",)},
    ],
)
def test_the_test_image_needs_no_more_than_the_server_offers(changes: dict[str, Any]) -> None:
    made = Service(settings(**changes))
    made.start()
    assert made.ready
    made.close()


def test_stored_answers_hold_for_the_usual_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.serve.readiness.STORED", {"tiny": {"zero-shot": (0.1, 0.2, 0.7)}})
    made = Service(settings(augmix=True))
    made.start()
    made.close()
    usual = Service(settings())
    with pytest.raises(PoiseError, match="stored answer"):
        usual.start()
    usual.close()


def test_files_with_fixed_labels_are_not_served() -> None:
    with pytest.raises(InvalidOptionError, match="fixed labels"):
        Service(settings(model="onnx:classifier.onnx")).start()
