"""Traces a module to an ONNX graph."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from poise.errors import MissingDependencyError

_CHATTY = ("torch.onnx", "onnxscript", "onnx_ir")
OPSET = 18  # runs with onnxruntime 1.14 (2023) and later


def trace(
    module: nn.Module,
    example: Tensor,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    feature: str,
    extra: str = "onnx",
    any_number: bool = False,
    translations: Mapping[Any, Any] | None = None,
) -> Any:
    """Return the ONNX model of a module with one input.

    Args:
        module: the module, in evaluation mode on the CPU.
        example: an input.
        inputs: name of the input.
        outputs: names of the outputs.
        feature: what the trace is for, for the error if onnxscript is missing.
        extra: the extra of poise that installs it.
        any_number: whether the first dimension may differ from that of the example.
        translations: how to write torch's operations that the exporter lacks.
    """
    try:
        import onnxscript.ir
    except ImportError:
        raise MissingDependencyError.of(feature, "onnxscript", extra) from None
    logs = {log: log.level for log in map(logging.getLogger, _CHATTY)}
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=inputs,
                output_names=outputs,
                custom_translation_table=dict(translations or {}),
                dynamic_shapes=({0: torch.export.Dim("batch", min=1, max=1 << 20)},) if any_number else None,
            )
    finally:
        for log, level in logs.items():
            log.setLevel(level)
    assert program is not None
    return onnxscript.ir.to_proto(program.model)
