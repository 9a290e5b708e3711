"""One service with the model `tiny`, and the images of the tests."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="install the extra 'demo'")

from poise.serve.service import Service
from poise.serve.settings import ServiceSettings


@pytest.fixture(scope="session")
def service() -> Iterator[Service]:
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
