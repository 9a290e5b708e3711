"""An image tower that OpenVINO computes on the CPU, converted from torch when a model is loaded.

The tower is traced to ONNX, which OpenVINO's core reads. Its own converter of torch models would do, too, but it has
telemetry. Each view is a request of its own: as many are computed side by side as torch has threads, each by one
thread, so that features do not depend on the other views of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from poise.backbones.onnx_graph import trace
from poise.errors import InvalidOptionError, MissingDependencyError

_HINTS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVinoTower:
    """Maps images [N, 3, S, S] to features [N, D] as ``forward`` does, without gradients.

    Args:
        forward: the tower in torch, in float32 on the CPU.
        side: S, of the images.
        precision: "float32" or "bfloat16".
        name: of the model, for messages.
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], side: int, precision: str, name: str) -> None:
        try:
            import openvino
        except ImportError:
            raise MissingDependencyError.of("The device 'openvino'", "openvino", "openvino") from None
        core = openvino.Core()
        if precision == "bfloat16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise InvalidOptionError("This CPU has no instructions for bfloat16.", hint="Use dtype float32.")
        graph = _graph(forward, side, name)
        threads = torch.get_num_threads()
        settings = {
            "INFERENCE_PRECISION_HINT": _HINTS[precision],
            "NUM_STREAMS": threads,
            "INFERENCE_NUM_THREADS": threads,
            "ENABLE_CPU_PINNING": False,
        }
        try:
            compiled = core.compile_model(core.read_model(graph), "CPU", settings)
        except RuntimeError as error:  # for instance, instructions that the CPU has are switched off
            reason = str(error).strip().splitlines()[-1][:200]
            raise InvalidOptionError(
                f"OpenVINO can't compute the image tower of {name} in {precision} here: {reason}.",
                hint="Use dtype float32, or device='cpu'.",
            ) from None
        self._width = compiled.output(0).shape[-1]
        self._queue = openvino.AsyncInferQueue(compiled, threads)
        self._queue.set_callback(_store)
        self._lock = threading.Lock()  # the queue is for one batch at a time

    def __call__(self, images: Tensor) -> Tensor:
        """Return unnormalised features [N, D]."""
        features = torch.empty(len(images), self._width)
        with self._lock:
            for image, row in zip(images.float().contiguous(), features, strict=True):
                self._queue.start_async({0: image[None].numpy()}, row)
            self._queue.wait_all()
        return features


def _store(request: Any, row: Tensor) -> None:
    row.copy_(torch.from_numpy(request.get_output_tensor(0).data[0]))


def _graph(forward: Callable[[Tensor], Tensor], side: int, name: str) -> bytes:
    """Return the tower for one image as ONNX."""

    class Tower(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return forward(images)

    try:
        model = trace(
            Tower().eval(),
            torch.zeros(1, 3, side, side),
            ["images"],
            ["features"],
            feature="The device 'openvino'",
            extra="openvino",
        )
    except torch.onnx.OnnxExporterError as error:
        raise InvalidOptionError(
            f"The image tower of {name} can't be converted for OpenVINO: {str(error).splitlines()[0][:200]}",
            hint="Use device='cpu'.",
        ) from None
    content: bytes = model.SerializeToString()
    return content
