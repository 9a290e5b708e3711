"""The contract: the OpenAPI document is the stored one, and the server keeps it under generated requests."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from poise.serve.http.app import create_app
from poise.serve.limits import Limits
from tests.serve.live import HeldService, running, settings

STORED = Path(__file__).parent / "openapi.json"
OPERATIONS = ("batch", "classify", "live", "metrics", "models", "ready", "zero_shot_image_classification")


def test_the_document_is_the_stored_one() -> None:
    document = create_app(settings()).openapi()
    del document["info"]["version"]
    if os.environ.get("POISE_UPDATE_SNAPSHOTS"):
        STORED.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", "utf-8")
    assert json.loads(STORED.read_text("utf-8")) == document, "set POISE_UPDATE_SNAPSHOTS=1 if the change is wanted"
    found = [row["operationId"] for path in document["paths"].values() for row in path.values()]
    assert tuple(sorted(found)) == OPERATIONS


@pytest.mark.parametrize("token", ["", "secret"])
def test_the_document_says_how_the_token_is_sent(token: str) -> None:
    document = create_app(settings(token=token)).openapi()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for operation in operations.values():
            free = path in ("/live", "/ready")
            assert operation["security"] == ([] if free else [{"token": []}] if token else [{"token": []}, {}])


def test_every_field_of_an_answer_has_a_description() -> None:
    parts = create_app(settings()).openapi()["components"]["schemas"]
    fields = {f"{part}.{name}": row for part, schema in parts.items() for name, row in schema["properties"].items()}
    assert {"Result.label", "Result.decision", "Details.losses", "ErrorDetail.hint"} <= {*fields}
    assert [name for name, row in fields.items() if not row.get("description")] == []


@pytest.mark.parametrize("count", [3, pytest.param(200, marks=pytest.mark.slow)])
def test_generated_requests_find_no_defect(count: int, tmp_path: Path) -> None:
    """schemathesis: no 5xx, only documented statuses and bodies, and what violates the schema is refused."""
    if importlib.util.find_spec("schemathesis") is None:  # not imported here, which takes seconds
        pytest.skip("install the 'test' extra")
    with running(HeldService(settings(limits=Limits(views=8, labels=20)))) as live:
        command = [
            sys.executable,
            "-m",
            "schemathesis.cli",
            "run",
            f"{live.url}/openapi.json",
            "--max-examples",
            str(count),
            # A valid request may contain a text that is no image, which is refused.
            "--exclude-checks",
            "positive_data_acceptance",
            "--seed",
            "1",
            "--no-color",
            "--suppress-health-check",
            "all",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=1200)
        assert live.get("/ready").status_code == 200
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
