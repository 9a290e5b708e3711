"""The check that a server passes before it is ready: an image with a known answer."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from poise.errors import PoiseError
from poise.results import Results
from poise.serve.settings import Job, ServiceSettings

LABELS = ("a red square", "a green circle", "a dog")

# Probabilities of the labels by model and method, where the weights are part of poise; see `_stored`.
STORED: dict[str, dict[str, tuple[float, ...]]] = {
    "pocket": {"zero-shot": (0.461120, 0.535205, 0.003675), "kld+cats": (0.548802, 0.447225, 0.003973)},
}
_TOLERANCES = {"float64": 1e-3, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.1, "float8": 0.1}


def job(settings: ServiceSettings) -> Job:
    """Return what is asked about the image: two methods, or zero-shot alone if there are no words to tune."""
    methods = ("zero-shot",) if settings.context == "none" else ("zero-shot", "kld+cats")
    asked = {"template": "a photo of {}.", "views": 4, "seed": 0, "uncalibrated": True, "independent": False}
    return Job(labels=LABELS, methods=methods, **asked)


def image() -> bytes:
    """Return the image: a red square on a gradient, as PNG."""
    rows, columns = np.mgrid[:64, :64]
    pixels = np.stack([columns * 2, rows * 2, (rows + columns)], axis=-1).astype(np.uint8)
    pixels[16:48, 16:48] = (220, 30, 30)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def check(model: str, dtype: str, settings: ServiceSettings, served: Results, plain: Results) -> None:
    """Raise an error unless the server's answers equal those of a plain call, and the stored ones.

    Args:
        model: name of the model.
        dtype: its number format, such as "float32".
        settings: of the server.
        served: answers for the image, computed through the queue.
        plain: answers for the image without the queue.
    """
    expected = {f"a plain call ({name})": (name, list(plain[name].probabilities.items())) for name in plain}
    for name, probs in _stored(model, settings).items():
        expected[f"the stored answer ({name})"] = name, list(zip(LABELS, probs, strict=True))
    for source, (name, pairs) in expected.items():
        worst = max(abs(served[name].probabilities[label] - prob) for label, prob in pairs)
        if not worst <= _TOLERANCES[dtype]:
            raise PoiseError(
                f"The server's answer for its test image differs from {source} by {worst:.3g}.",
                hint="The model's weights or this machine's arithmetic are not what they should be.",
                code="golden_check_failed",
            )


def _stored(model: str, settings: ServiceSettings) -> dict[str, tuple[float, ...]]:
    """Return the stored answers; none if the server's settings are not those under which they were computed."""
    usual = (settings.init, settings.context, settings.augmix) == ("template", "auto", False)
    return STORED.get(model, {}) if usual else {}
