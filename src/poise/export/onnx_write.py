"""Writes a classifier as one ONNX file: image tower, text features of the labels, method, calibration, metadata."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from poise import __version__
from poise.backbones.encoder import NOT_TRACEABLE, Encoder
from poise.backbones.loaders.onnx_file import FORMAT, INPUT, KEY, SEAL, TEXTS, seal
from poise.backbones.onnx_graph import OPSET, trace
from poise.calibration import Calibration, quantile
from poise.calibration.certify import in_words
from poise.errors import InvalidOptionError, MissingDependencyError
from poise.export.head import RULES, CalibrationLimits, ExportedClassifier, LabelHead
from poise.files import write_atomic
from poise.inference.classifier import Classifier
from poise.inference.guarantees import Guarantees, conditions_of
from poise.methods import Method


def export_onnx(classifier: Classifier[Any], path: str | Path) -> None:
    """Write a classifier as one ONNX file, which runs with onnxruntime alone.

    The file has the input ``views`` [B, V, 3, S, S], normalised, for any B, and these outputs: ``features`` [B, V, D],
    ``raw_probabilities`` and ``probabilities`` [B, C] before and after calibration; with the classifier's ``coverage``
    also ``in_set`` [B, C], and with its ``max_error`` also ``answered`` [B], and if the labels are in a tree ``node``
    [B], positions in the metadata's "nodes" or -1. Independent labels have ``probabilities`` and, with a ``precision``
    or ``recall``, ``yes`` and ``no`` [B, C] instead. Its metadata are JSON under the key "poise".

    Args:
        classifier: on a CPU in float32, with one method: "zero-shot", "zero" or "mta", and the calibration, coverage
            and max_error that the file is to have.
        path: the file.

    Raises:
        InvalidOptionError: The classifier can't be exported.
        MissingDependencyError: onnx, onnxscript or onnxruntime is not installed.

    Example:
        >>> import tempfile
        >>> from poise import Classifier
        >>> from poise.export import open_onnx
        >>> classify = Classifier(["cat", "dog"], model="tiny", method="zero-shot", device="cpu")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     export_onnx(classify, f"{folder}/classify.onnx")
        ...     open_onnx(f"{folder}/classify.onnx").labels
        ('cat', 'dog')
    """
    method, encoder = _checked(classifier)
    part, limits = _limits(method.name, classifier.guarantees)
    texts = classifier.tuner.texts.init_features()[0].float()
    calibrator = None if part is None else part.calibrator
    module = ExportedClassifier(encoder, texts, method, calibrator, limits, _label_head(classifier)).eval()
    model = _trace(module, classifier.recipe.views if method.reads_views else 1)
    metadata = _metadata(classifier, method, limits)
    _add_texts(model, texts)
    words = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
    for key, value in ((KEY, words), (SEAL, seal(model, words))):
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    write_atomic(path, model.SerializeToString())


def _checked(classifier: Classifier[Any]) -> tuple[Method, Encoder]:
    """Return the method and the encoder; raise an error if they can't be exported."""
    if classifier.groups:
        raise InvalidOptionError("The labels are in groups.", hint="Export one file for each group.")
    if len(classifier.methods) != 1:
        raise InvalidOptionError(f"The classifier has {len(classifier.methods)} methods.", hint="Export one method.")
    (method,), encoder = classifier.methods, classifier.encoder
    if method.tunes or method.posthoc or (method.rule and method.rule not in RULES):
        raise InvalidOptionError(
            f"The method '{method.name}' can't be exported: {_why_not(method)}.",
            hint=f"Accepted: zero-shot, {', '.join(RULES)}; with a calibration, zero-shot is often as good.",
        )
    on_cpu = isinstance(encoder, Encoder) and encoder.device.type == "cpu" and encoder.in_torch
    if not isinstance(encoder, Encoder) or not on_cpu or encoder.dtype != torch.float32:
        raise InvalidOptionError(
            f"{encoder!r} can't be exported.", hint="Load the model with device='cpu' and dtype='float32'."
        )
    if not encoder.traceable:
        raise InvalidOptionError(
            f"{encoder.name} can't be exported: {NOT_TRACEABLE}.", hint="Use a model with images of a fixed size."
        )
    if classifier.tuner.reads == "views":
        raise InvalidOptionError("An init with image prompts can't be exported.", hint="Use another init.")
    return method, encoder


def _why_not(method: Method) -> str:
    if method.tunes:
        return "it tunes a prompt for each image, which needs gradients of the text tower"
    return "it has post-hoc steps" if method.posthoc else f"the rule '{method.rule}' can't be traced"


def _label_head(classifier: Classifier[Any]) -> LabelHead | None:
    """Return what answers independent labels; None for labels of which one applies."""
    known = classifier.label_guarantees
    if known is None:
        return None
    known.check()
    stored, encoder = known.calibration, classifier.encoder
    return LabelHead(encoder.scale, encoder.bias, None if stored is None else stored.fit, known.thresholds)


def _limits(method: str, guarantees: Guarantees | None) -> tuple[Any, CalibrationLimits]:
    if guarantees is None:
        return None, CalibrationLimits()
    part, certificate = guarantees.parts[method], guarantees.certificates.get(method)
    level = guarantees.coverage
    return part, CalibrationLimits(
        None if level is None else quantile(part.scores["lac"], level),
        None if certificate is None else guarantees.calibration.tree,
        None if certificate is None else certificate.threshold,
    )


def _metadata(classifier: Classifier[Any], method: Method, limits: CalibrationLimits) -> dict[str, Any]:
    encoder, conditions, guarantees = classifier.encoder, conditions_of(classifier), classifier.guarantees
    calibration, words, max_error = None, None, None
    if guarantees is not None:
        stored = guarantees.calibration
        calibration = Calibration(
            conditions=stored.conditions,
            methods={method.name: guarantees.parts[method.name]},
            recommended=method.name,
            reason=stored.reason,
            images=stored.images,
            looks=stored.looks,
        ).to_dict()
        if limits.threshold is not None:
            max_error = guarantees.certificates[method.name].max_error
            words = in_words(max_error, stored.confidence, limits.tree is not None)
    known = classifier.label_guarantees
    if known is not None:
        calibration = None if known.calibration is None else known.calibration.to_dict()
        words = known.guarantee
    return {
        "format": FORMAT,
        "version": __version__,
        "labels": list(classifier.labels),
        "nodes": list(classifier.tree.names) if classifier.tree else None,  # what the output ``node`` counts
        "template": conditions.template,
        "fingerprint": conditions.fingerprint,
        "conditions": asdict(conditions),
        "method": method.name,
        "settings": json.loads(json.dumps(method.settings())),
        "views": classifier.recipe.views if method.reads_views else 1,
        "image": asdict(encoder.image),
        "scale": encoder.scale,
        "bias": encoder.bias,
        "activation": encoder.activation,
        "opset": OPSET,
        "int8": False,  # True in files of earlier versions whose image tower has 8 bits
        "calibration": calibration,
        "coverage": None if guarantees is None else guarantees.coverage,
        "max_error": max_error,
        "precision": None if known is None else known.precision,
        "recall": None if known is None else known.recall,
        "threshold": limits.threshold,
        "guarantee": words,
    }


def _trace(module: ExportedClassifier, views: int) -> Any:
    """Return the ONNX model of the classifier."""
    side = module.encoder.image.size
    model = trace(
        module,
        torch.zeros(2, views, 3, side, side),
        [INPUT],
        module.outputs,
        feature="Exporting ONNX files",
        any_number=True,
        translations=_translations(),
    )
    if not model.graph.input[0].type.tensor_type.shape.dim[0].dim_param:  # the trace has fixed the number of images
        raise InvalidOptionError(
            f"The image tower of {module.encoder.name} can't be exported: its code depends on the number of images.",
            hint="Use another model.",
        )
    return model


def _translations() -> dict[Any, Any]:
    """Return how to write the operations of rules that torch's exporter lacks."""
    try:
        from onnxscript import opset18 as op
    except ImportError:
        raise MissingDependencyError.of("Exporting ONNX files", "onnxscript", "onnx") from None

    def sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
        size = op.Gather(op.Shape(values), op.Constant(value_ints=[dim]))
        return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)  # ties stay in their order

    def distances(one: Any, other: Any, p: float, mode: int | None = None) -> Any:  # [B, n, D], [B, m, D] -> [B, n, m]
        rows, columns = op.Constant(value_ints=[-2]), op.Constant(value_ints=[-3])
        differences = op.Sub(op.Unsqueeze(one, rows), op.Unsqueeze(other, columns))
        return op.ReduceL2(differences, op.Constant(value_ints=[-1]), keepdims=0)

    return {torch.ops.aten.sort.stable: sort, torch.ops.aten._cdist_forward.default: distances}


def _add_texts(model: Any, text_features: torch.Tensor) -> None:
    """Add the text features under a name of their own, as an output, so that no optimiser removes them."""
    import onnx

    graph = model.graph
    for tensor in graph.initializer:  # of the same name, from the trace
        if tensor.name == TEXTS:
            tensor.name = f"{TEXTS}.traced"
            for node in graph.node:
                node.input[:] = [tensor.name if name == TEXTS else name for name in node.input]
    graph.initializer.append(onnx.numpy_helper.from_array(text_features.numpy(), TEXTS))
    graph.node.append(onnx.helper.make_node("Identity", [TEXTS], ["label_features"]))
    shape = list(text_features.shape)
    graph.output.append(onnx.helper.make_tensor_value_info("label_features", onnx.TensorProto.FLOAT, shape))
