"""Targets for bodies of requests and for exported files. Importing this module adds them to the table."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from tools.fuzz.edits import Choices, as_json, edited_bytes, edited_json, edited_tree
from tools.fuzz.targets import _images, _written, target

_OPTIONS = {
    "labels": ["cat", "dog"],
    "methods": ["kld+cats", "zero-shot"],
    "template": "a photo of a {}.",
    "views": 8,
    "seed": 1,
    "details": True,
    "coverage": 0.9,
    "max_error": 0.1,
    "deadline": 5.0,
}
_BOUNDARY = b"edge"


@functools.cache
def _form() -> bytes:
    fields = [(name, value) for name, values in _OPTIONS.items() for value in _listed(values)]
    parts = [b'Content-Disposition: form-data; name="%s"\r\n\r\n%s' % (name.encode(), value) for name, value in fields]
    file = b'Content-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    return b"".join(b"--%s\r\n%s\r\n" % (_BOUNDARY, part) for part in [*parts, file + _images()[3]]) + b"--edge--\r\n"


def _listed(values: Any) -> list[bytes]:
    return [str(part).encode() for part in values] if isinstance(values, list) else [as_json(values).strip(b'"')]


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


@target("bodies of requests (JSON and multipart), up to the job that the server plans")
def http_body(choices: Choices, folder: Path) -> None:
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from poise.serve.http.bodies import decode, read_form, read_json
    from poise.serve.http.schemas import ClassifyRequest
    from poise.serve.jobs import plan
    from poise.serve.settings import ServiceSettings

    form = choices.number(2)
    if form:
        body, kind = edited_bytes(choices, [_form()]), b"multipart/form-data; boundary=edge"
    else:
        body, kind = edited_json(choices, {"image": "iVBORw0KGgo=", **_OPTIONS}), b"application/json"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    scope = {"type": "http", "method": "POST", "headers": [(b"content-type", kind)], "app": None}
    request = Request(scope, receive)
    with contextlib.suppress(HTTPException):  # the parser's own, which the server answers with 400
        if form:
            asked, _ = _loop().run_until_complete(read_form(request, ClassifyRequest, "image", 1100))
        else:
            asked = _loop().run_until_complete(read_json(request, ClassifyRequest))
            decode(asked.image)
        plan(asked.job(), ServiceSettings(model="tiny"))


@functools.cache
def _model() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    from poise.backbones.loaders.onnx_file import FEATURES, FORMAT, INPUT, KEY, TEXTS

    image = {
        "size": 4,
        "mean": [0.5] * 3,
        "std": [0.2] * 3,
        "interpolation": "bicubic",
        "resize": "shortest",
        "crop_offset": "round",
        "crop_interpolation": "bicubic",
    }
    facts = {
        "format": FORMAT,
        "version": "1",
        "conditions": {},
        "labels": ["cat", "dog"],
        "template": "{}",
        "fingerprint": "0" * 16,
        "method": "zero-shot",
        "settings": {},
        "views": 1,
        "image": image,
        "scale": 100.0,
        "bias": 0.0,
        "activation": "softmax",
        "opset": 18,
        "int8": False,
        "calibration": None,
        "coverage": 0.9,
        "max_error": None,
        "threshold": 0.5,
        "guarantee": "x",
    }
    graph = helper.make_graph(
        [helper.make_node("Flatten", [INPUT], [FEATURES], axis=2)],
        "g",
        [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", 1, 3, 4, 4])],
        [helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, ["n", 48])],
        [numpy_helper.from_array(np.ones((2, 48), np.float32), TEXTS)],
    )
    model = helper.make_model(graph)
    helper.set_model_props(model, {KEY: json.dumps(facts)})
    return model


@target("ONNX files, up to the checks before onnxruntime loads them")
def onnx_file(choices: Choices, folder: Path) -> None:
    from onnx import ModelProto, helper

    from poise.backbones.loaders.onnx_file import KEY, SEAL, read_onnx, seal

    model = ModelProto()
    model.CopyFrom(_model())
    if choices.number(3) == 2:
        content = edited_bytes(choices, [model.SerializeToString()])
    else:
        facts = json.loads(model.metadata_props[0].value)
        metadata = as_json(edited_tree(choices, facts)).decode()
        helper.set_model_props(model, {KEY: metadata, SEAL: seal(model, metadata)})  # by one who knows the format
        content = model.SerializeToString()
    read_onnx(_written(folder, "m.onnx", content))
