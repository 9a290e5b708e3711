"""Files of `poise export onnx`: their metadata, the checks of a file that may come from anyone, and their encoder."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise.backbones.loaders.known_keys import LARGEST_IMAGE
from poise.backbones.loaders.schema import (
    FLAG,
    NULL,
    Section,
    Value,
    choice,
    either,
    integer,
    items,
    number,
    read,
    text,
)
from poise.backbones.placement import dtype_name
from poise.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    MissingDependencyError,
    ModelNotFoundError,
    reason_of,
)
from poise.files import checksum
from poise.types import ClassTokens, ImageSpec, Prompt

FORMAT = "poise-onnx/2"
KEY = "poise"  # of the metadata, which are JSON
SEAL = "poise.sha256"  # of the hash that binds the metadata to the graph, its weights and its text features
INPUT, FEATURES, TEXTS = "views", "features", "text_features"
_LARGEST = 2**31 - 1  # bytes of a file, which is the limit of its format
_DOMAINS = ("", "ai.onnx")  # of operators: those of the ONNX standard
_LARGEST_SHAPE = 2**28  # elements of a tensor that a constant of the graph asks for
_GROWING = ("ConstantOfShape", "Expand", "Tile", "Resize", "Upsample", "Pad", "Range", "OneHot")
_LARGEST_RANK = 16
_CHUNK = 4  # plain views per call: their activations fit into the cache

_OBJECT = Value("an object", lambda value: isinstance(value, dict))
_LEVEL = either(number(0, 1), NULL)
METADATA = Section(
    {
        "format": choice(FORMAT),
        "version": text(),
        "conditions": _OBJECT,  # checked by `poise.calibration.Conditions`
        "labels": items(text(r"[^\x00]{1,10000}", "a text"), 1, 1_000_000),
        "nodes": either(items(text(r"[^\x00]{1,10000}", "a text"), 1, 2_000_000), NULL),
        "template": text(r"[^\x00]{1,10000}", "a text"),
        "fingerprint": text(r"[0-9a-f]{16}|[0-9a-f]{32}", "32 hexadecimal digits"),
        "method": text(),
        "settings": _OBJECT,
        "views": integer(1, 4096),
        "image": Section(
            {
                "size": integer(1, LARGEST_IMAGE),
                "mean": items(number(-1000, 1000), 3, 3),
                "std": items(number(1e-6, 1000), 3, 3),
                "interpolation": choice("bilinear", "bicubic", "lanczos"),
                "resize": choice("shortest", "squash"),
                "crop_offset": choice("round", "floor"),
                "crop_interpolation": choice("bilinear", "bicubic"),
                "grid": NULL,
            },
            required=("size", "mean", "std", "interpolation", "resize", "crop_offset", "crop_interpolation"),
        ),
        "scale": number(1e-6, 1e6),
        "bias": number(-1e6, 1e6),
        "activation": choice("softmax", "sigmoid"),
        "opset": integer(18, 100),
        "int8": FLAG,
        "calibration": either(_OBJECT, NULL),  # checked by `poise.calibration.Calibration`
        "coverage": _LEVEL,
        "max_error": _LEVEL,
        "precision": _LEVEL,
        "recall": _LEVEL,
        "threshold": _LEVEL,
        "guarantee": either(text(r"[^\x00]{0,1000}", "a text"), NULL),
    },
    required=(
        "format",
        "version",
        "conditions",
        "labels",
        "template",
        "fingerprint",
        "method",
        "settings",
        "views",
        "image",
        "scale",
        "bias",
        "activation",
        "opset",
        "int8",
    ),
)


@dataclass(frozen=True, eq=False)
class OnnxFile:
    """A checked file: its content, its metadata, and the text features [C, D] of its labels."""

    path: str
    content: bytes
    metadata: dict[str, Any]
    text_features: np.ndarray


def read_onnx(path: str | Path) -> OnnxFile:
    """Read a file that `poise export onnx` wrote.

    Refused are files above 2 GiB, weights in other files, operators outside of the ONNX standard, and control flow,
    which could run for ever. Metadata must fit a schema.
    """
    try:
        import onnx
    except ImportError:
        raise MissingDependencyError.of("Reading ONNX files", "onnx", "onnx") from None
    file = Path(path).expanduser()
    content = _read_bytes(file)
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf raises several kinds, also for texts that are not UTF-8
        raise _damaged(file, f"it is not an ONNX file ({type(error).__name__})") from None
    _check_graph(model, file)
    entries = [(entry.key, entry.value) for entry in model.metadata_props if entry.key in (KEY, SEAL)]
    found = dict(entries)
    try:
        values = json.loads(found[KEY]) if KEY in found and len(entries) == len(found) else None
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and values.get("format") == "poise-onnx/1":
        raise _damaged(
            file, "an earlier version of poise wrote it, which did not bind its parts by a hash: export it again"
        )
    metadata = read(METADATA, values, file)
    if found.get(SEAL) != seal(model, found[KEY]):
        raise _damaged(
            file, "its weights, text features, metadata or calibration are not those that it was written with"
        )
    _check_input(model, metadata, file)
    stored = [tensor for tensor in model.graph.initializer if tensor.name == TEXTS]
    try:
        features = onnx.numpy_helper.to_array(stored[0]) if len(stored) == 1 else np.empty(0)
    except Exception as error:
        raise _damaged(file, f"its text features can't be read: {reason_of(error)}") from None
    shaped = features.ndim == 2 and features.dtype == np.float32 and len(features) == len(metadata["labels"])
    if not shaped or not np.isfinite(features).all():
        raise _damaged(file, "it does not have one finite text feature per label")
    return OnnxFile(str(path), content, metadata, features)


def seal(model: Any, metadata: str) -> str:
    """Return the hash of a model's graph and metadata."""
    return checksum(model.graph.SerializeToString(deterministic=True) + b"\0" + metadata.encode())


def _check_input(model: Any, metadata: dict[str, Any], file: Path) -> None:
    """Compare the shape of the graph's input with the metadata: onnxruntime would fail while it answers."""
    shape = model.graph.input[0].type.tensor_type.shape.dim
    side = metadata["image"]["size"]
    if [part.dim_value for part in shape][1:] != [metadata["views"], 3, side, side]:
        raise _damaged(file, f"its graph does not read {metadata['views']} views of {side} x {side} pixels")


def _read_bytes(file: Path) -> bytes:
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _damaged(file, "it is not a regular file")
        if found.st_size > _LARGEST:
            raise _damaged(file, "it is larger than 2 GiB")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidCheckpointError):
            raise
        hint = "Give the path of a file that `poise export onnx` wrote."
        raise ModelNotFoundError(f"'{file}' can't be read: {reason_of(error)}.", hint=hint) from None


def _check_graph(model: Any, file: Path) -> None:
    if model.functions or model.training_info:
        raise _damaged(file, "it has functions or training information")
    for node in model.graph.node:
        if node.domain not in _DOMAINS:
            raise _damaged(file, f"its operator {node.op_type[:40]!r} is of the domain {node.domain[:40]!r}")
        if any(part.graphs or part.HasField("g") for part in node.attribute):
            raise _damaged(file, f"it has control flow ({node.op_type[:40]!r})")
    _check_sizes(model, file)
    outside = any(tensor.data_location or tensor.external_data for tensor in _tensors(model))
    if outside or model.graph.sparse_initializer:
        raise _damaged(file, "some of its weights are in other files or sparse")
    names = [value.name for value in model.graph.input]
    if names != [INPUT] or FEATURES not in [value.name for value in model.graph.output]:
        raise _damaged(file, f"its inputs are {str(names)[:80]}")


def _check_sizes(model: Any, file: Path) -> None:
    """Refuse operators that make a huge tensor out of a constant."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constants |= dict(zip(node.output, (part.t for part in node.attribute if part.HasField("t")), strict=False))
    for node in (node for node in model.graph.node if node.op_type in _GROWING):
        for tensor in (constants[name] for name in node.input if name in constants):
            whole = tensor.data_type in (6, 7)  # int32, int64
            values = _numbers(tensor, file) if whole and math.prod(tensor.dims) <= _LARGEST_RANK else []
            if math.prod(max(1, abs(int(value))) for value in values) > _LARGEST_SHAPE:
                raise _damaged(file, f"{node.op_type} makes a tensor of more than {_LARGEST_SHAPE:,} elements")


def _numbers(tensor: Any, file: Path) -> list[int]:
    import onnx

    try:
        return list(onnx.numpy_helper.to_array(tensor).ravel().tolist())
    except Exception as error:  # the values do not fit the shape
        raise _damaged(file, f"a constant can't be read: {reason_of(error)}") from None


def _tensors(model: Any) -> Iterator[Any]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t


def _damaged(file: Path | str, why: str) -> InvalidCheckpointError:
    return InvalidCheckpointError(f"'{file}' is refused: {why}.", hint="Give a file that `poise export onnx` wrote.")


def start_session(content: bytes, path: str) -> Any:
    """Return an onnxruntime session with as many threads as torch has; they do not spin while they wait."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError.of("Running ONNX files", "onnxruntime", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise _damaged(path, f"onnxruntime can't load it: {str(error)[:200]}") from None


class OnnxEncoder:
    """The image tower of an ONNX file, with the frozen text features of its labels; a `poise.types.DualEncoder`.

    It has no text tower: other labels and templates, and methods that tune a prompt, are refused.
    """

    def __init__(self, file: OnnxFile) -> None:
        facts = file.metadata
        self.name = f"onnx:{file.path}"
        image: dict[str, Any] = facts["image"]
        self.image = ImageSpec(**{**image, "mean": tuple(image["mean"]), "std": tuple(image["std"])})
        self.context_length, self.fixed_length, self.pad_id = 1 << 20, False, 0
        self.scale, self.bias, self.activation = float(facts["scale"]), float(facts["bias"]), facts["activation"]
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.views = int(facts["views"])
        self._file, self._session = file, start_session(file.content, file.path)
        self._rows = {
            label: torch.from_numpy(row.copy()) for label, row in zip(facts["labels"], file.text_features, strict=True)
        }

    def fingerprint(self) -> str:
        """Return the fingerprint of the exported model; of an int8 file, that of its own weights."""
        return str(self._file.metadata["fingerprint"])

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return one number per character: texts are told apart, but there is no text tower to read them."""
        return [[0, *(ord(character) + 2 for character in part), 1] for part in texts]

    def embed(self, ids: Tensor) -> Tensor:
        """Return vectors of width 0."""
        return torch.empty(*ids.shape, 0)

    def encode_images(self, views: Tensor) -> Tensor:
        """Return unit features [B, V, D] of normalised views [B, V, 3, S, S]."""
        shape = (views.shape[1], 3, self.image.size, self.image.size)
        if views.dim() != 5 or tuple(views.shape[1:]) != shape or (self.views > 1 and shape[0] != self.views):
            raise InvalidOptionError(
                f"Images of shape {list(views.shape)} were given.",
                hint=f"'{self.name}' accepts [images, {self.views}, 3, {self.image.size}, {self.image.size}].",
            )
        each = views.float() if self.views > 1 else views.float().flatten(0, 1)[:, None]
        parts = each.split(1 if self.views > 1 else _CHUNK)
        try:
            found = [self._session.run([FEATURES], {INPUT: part.contiguous().numpy()})[0] for part in parts]
        except Exception as error:  # onnxruntime's errors have no common class
            raise _damaged(self._file.path, f"onnxruntime can't compute it: {str(error)[:200]}") from None
        return torch.from_numpy(np.concatenate(found)).reshape(*views.shape[:2], -1)

    def encode_classes(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return the stored features [1, C, D] of the labels."""
        facts = self._file.metadata
        if classes.slots.shape[1]:
            raise InvalidOptionError(
                f"'{self.name}' has no text tower, so that no prompt can be tuned.",
                hint=f"Use its own method, '{facts['method']}'.",
            )
        unknown = [label for label in classes.labels if label not in self._rows]
        if unknown or classes.template != facts["template"]:
            given = f"the label {unknown[0]!r}" if unknown else f"the template {classes.template!r}"
            raise InvalidOptionError(
                f"'{self.name}' has no text feature for {given}.",
                hint=f"It was exported with {len(self._rows)} labels under {facts['template']!r}. Export it again.",
            )
        return torch.stack([self._rows[label] for label in classes.labels])[None]

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Return scale * cosine + bias, [B, V, D] x [B or 1, C, D] -> [B, V, C]."""
        return self.scale * (image_features @ text_features.transpose(-1, -2)) + self.bias


def load_onnx(path: str, *, device: torch.device, dtype: torch.dtype) -> OnnxEncoder:
    """Load the encoder of an ONNX file."""
    if device.type != "cpu" or dtype != torch.float32:
        raise InvalidOptionError(
            f"ONNX files run on the CPU in float32; {device} and {dtype_name(dtype)} were given.",
            hint="Use device='cpu' and dtype='float32'.",
        )
    return OnnxEncoder(read_onnx(path))
