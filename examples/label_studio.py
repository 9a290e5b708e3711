"""An ML backend of Label Studio: pre-annotations with calibrated scores, and none where the classifier abstains.

    pip install 'poise[serve]'
    LABEL_STUDIO_URL=http://localhost:8080 LABEL_STUDIO_API_KEY=KEY POISE_CALIBRATION=calibration.json \\
        POISE_MAX_ERROR=0.05 uvicorn --app-dir examples label_studio:app --port 9090

Then add http://localhost:9090 in the project's settings, under Model. Label Studio 1.23 refuses backends on its own
machine unless it was started with ML_BLOCK_LOCAL_IP=false and SSRF_PROTECTION_ENABLED=false.

The labels are the choices of the project (`<Choices name="..." toName="..."><Choice value="cat"/>...`). With a
calibration of these labels (`poise calibrate`) and POISE_MAX_ERROR, a task gets a pre-annotation only if at most that
share of the answers is wrong; the others are left to people. Without one, every task gets the most probable choice, and
the score is not calibrated. POISE_MODEL and POISE_DEVICE choose the model and the device.

Images are read through Label Studio alone, with the key of a user (a legacy token or a personal access token): uploaded
and local files, and those of its storages. An address of another host is not opened.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import urllib.request
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

from fastapi import FastAPI
from fastapi.responses import JSONResponse

import poise
from poise.calibration import Calibration
from poise.results import Failure

VERSION = f"poise {poise.__version__}"
MAX_BYTES = 64 << 20  # of an image
app = FastAPI(title="poise for Label Studio")
log = logging.getLogger("uvicorn.error")
busy = threading.Lock()


@dataclass(frozen=True)
class Project:
    """What a labelling configuration says: the names of its two tags, the image's key in a task, and the choices."""

    choices: str
    image: str
    key: str
    labels: tuple[str, ...]
    stored: tuple[str, ...]  # what annotations contain instead of the labels

    @classmethod
    def of(cls, config: str) -> Project:
        """Read a labelling configuration."""
        root = ElementTree.fromstring(config)
        images = {tag.get("name"): str(tag.get("value")) for tag in root.iter("Image")}
        for tag in root.iter("Choices"):
            if tag.get("toName") in images:
                options = list(tag.iter("Choice"))
                labels = tuple(str(option.get("value")) for option in options)
                stored = tuple(str(option.get("alias") or option.get("value")) for option in options)
                image = str(tag.get("toName"))
                return cls(str(tag.get("name")), image, images[image].removeprefix("$"), labels, stored)
        raise ValueError("The project has no <Choices> of an <Image>.")


def check(labels: tuple[str, ...]) -> None:
    """Refuse a project whose labels are not those of the calibration."""
    if calibration := os.environ.get("POISE_CALIBRATION"):
        known = Calibration.load(calibration).conditions.labels
        if sorted(known) != sorted(labels):
            raise ValueError(f"The calibration is of the labels {list(known)}, the project has {list(labels)}.")


@lru_cache(maxsize=4)
def classifier(labels: tuple[str, ...]) -> poise.Classifier:
    """Return the classifier of a project's labels."""
    check(labels)
    calibration, error = os.environ.get("POISE_CALIBRATION"), os.environ.get("POISE_MAX_ERROR")
    options: dict[str, Any] = {"device": os.environ.get("POISE_DEVICE", "auto")}
    if not calibration:
        return poise.Classifier(list(labels), os.environ.get("POISE_MODEL", "pocket"), **options)
    return poise.Classifier.from_calibration(calibration, **options, **({"max_error": float(error)} if error else {}))


def read(place: str, task: int) -> bytes:
    """Return an image's bytes from Label Studio."""
    host = os.environ.get("LABEL_STUDIO_URL", "http://localhost:8080").rstrip("/")
    if place.startswith("/") or place.startswith(f"{host}/"):
        address = host + place.removeprefix(host)
    elif "://" in place and not place.startswith(("http:", "https:")):  # of a storage, which Label Studio can open
        address = f"{host}/tasks/{task}/resolve/?fileuri={base64.urlsafe_b64encode(place.encode()).decode()}"
    else:
        raise ValueError(f"'{place}' is not a file of Label Studio at {host}")
    request = urllib.request.Request(address)
    request.add_unredirected_header("Authorization", authorization(host))  # not sent to the host of a storage
    with urllib.request.urlopen(request, timeout=30) as reply:
        content = reply.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"'{place}' has more than {MAX_BYTES} bytes")
    return content


def authorization(host: str) -> str:
    """Return the header of a request: a personal access token (a JWT) is exchanged for one of five minutes."""
    key = os.environ.get("LABEL_STUDIO_API_KEY", "")
    if key.count(".") != 2:
        return f"Token {key}"
    body = json.dumps({"refresh": key}).encode()
    request = urllib.request.Request(f"{host}/api/token/refresh", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return f"Bearer {json.load(reply)['access']}"


def image_of(task: dict[str, Any], project: Project) -> Any:
    """Return a task's image; bytes that are no image, and so get no answer, if it can't be read."""
    try:
        return read(str(task["data"][project.key]), int(task.get("id") or 0))
    except (OSError, ValueError, KeyError) as problem:
        log.warning("Task %s: %s", task.get("id"), problem)
        return b""


def predictions(tasks: list[dict[str, Any]], project: Project) -> list[list[dict[str, Any]]]:
    """Return a list of one prediction for each task; an empty one where the answer abstains or there is no image."""
    with busy:
        classify = classifier(project.labels)
        outcomes = list(classify.each([image_of(task, project) for task in tasks]))
    found: list[list[dict[str, Any]]] = []
    stored = dict(zip(project.labels, project.stored, strict=True))
    for outcome in outcomes:
        result = None if isinstance(outcome, Failure) else next(iter(outcome.values()))
        if result is None or result.decision == "abstain":
            found.append([])
            continue
        score = float(result.confidence)
        value = {"choices": [stored[result.label]]}
        choice = {"from_name": project.choices, "to_name": project.image, "type": "choices", "value": value}
        found.append([{"result": [choice | {"score": score}], "score": score, "model_version": VERSION}])
    return found


@app.get("/")
@app.get("/health")
def health() -> dict[str, str]:
    """Say that it is there."""
    return {"status": "UP", "model_class": "poise"}


@app.post("/setup")
def setup(body: dict[str, Any]) -> Any:
    """Check a project's labels; what is wrong is shown in its settings."""
    try:
        check(Project.of(str(body["schema"])).labels)
    except (ValueError, KeyError, ElementTree.ParseError) as problem:
        return JSONResponse({"error": str(problem)}, 400)
    return {"model_version": VERSION}


@app.post("/predict")
def predict(body: dict[str, Any]) -> Any:
    """Answer tasks."""
    try:
        return {"results": predictions(body["tasks"], Project.of(str(body["label_config"])))}
    except (ValueError, KeyError, TypeError, ElementTree.ParseError) as problem:
        return JSONResponse({"error": str(problem)}, 400)
