"""Quantises the image tower of an exported graph to 8 bits (onnxruntime's static quantisation)."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from poise.backbones.loaders.onnx_file import FEATURES, INPUT
from poise.errors import InvalidOptionError, MissingDependencyError
from poise.inference.classifier import Classifier
from poise.inference.predictor import Predictor
from poise.results import Failure
from poise.text import counted
from poise.views import ViewRecipe

FEWEST, MOST = 20, 200  # images that set the ranges: fewer say little, more cost time
_OPERATORS = ["Conv", "Gemm", "MatMul"]  # the arithmetic; everything else stays in float32


def quantise(model: Any, classifier: Classifier[Any], images: Sequence[Any]) -> Any:
    """Return the model with 8-bit weights and activations in its image tower.

    Args:
        model: the ONNX model.
        classifier: the classifier that it was made from.
        images: images whose activations set the ranges; at most 200 of them are used.
    """
    try:
        import onnx
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError:
        raise MissingDependencyError.of("Quantising ONNX files", "onnxruntime", "onnx") from None
    if len(images) < FEWEST:
        raise InvalidOptionError(
            f"{counted(len(images), 'image')} given for int8.",
            hint=f"Give at least {FEWEST} images like those to be classified.",
        )
    chosen = [images[at] for at in np.linspace(0, len(images) - 1, min(len(images), MOST)).round().astype(int)]
    batches = _views(classifier, chosen, _count(model))

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(batches, None)

    with tempfile.TemporaryDirectory() as folder:
        given, prepared, done = (Path(folder) / f"{name}.onnx" for name in ("given", "prepared", "done"))
        onnx.save(model, given)
        quant_pre_process(given, prepared, skip_symbolic_shape=True)  # folds constants and infers shapes
        tower = onnx.load(prepared)
        log = logging.getLogger()
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            quantization.quantize_static(
                tower,
                done,
                Reader(),
                quant_format=quantization.QuantFormat.QDQ,
                per_channel=True,
                op_types_to_quantize=_OPERATORS,
                nodes_to_exclude=_after_features(tower),
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=quantization.CalibrationMethod.MinMax,
            )
        finally:
            log.setLevel(level)
        return onnx.load(done)


def _count(model: Any) -> int:
    """Return the number of views that the graph reads."""
    return int(model.graph.input[0].type.tensor_type.shape.dim[1].dim_value)


def _views(classifier: Classifier[Any], images: Sequence[Any], count: int) -> Iterator[dict[str, np.ndarray]]:
    recipe = ViewRecipe(count, classifier.recipe.seed, classifier.recipe.augmix)
    for views in Predictor(classifier.encoder, views=recipe, batch_size=1).views(images):
        if not isinstance(views, Failure):
            yield {INPUT: views[None].numpy()}


def _after_features(model: Any) -> list[str]:
    """Return the names of the nodes that depend on the features: logits, rules and calibration stay exact."""
    after, names = {FEATURES}, []
    for node in model.graph.node:  # in topological order
        if after & set(node.input):
            after |= set(node.output)
            names.append(node.name)
    return names
