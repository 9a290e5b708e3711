"""One service with the model `tiny`, and the images of the tests. Nothing is collected without the extra `demo`."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

if importlib.util.find_spec("gradio") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def service() -> Iterator[Any]:
    from poise.serve.service import Service
    from poise.serve.settings import ServiceSettings

    made = Service(ServiceSettings(model="tiny", device="cpu", views=8))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="session")
def image() -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()
