"""What is fuzzed, one row each: a name, and a function of random bytes that may raise no error but poise's own."""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from poise.errors import PoiseError
from tools.fuzz.edits import Choices, as_toml, edited_bytes, edited_json, edited_tree


@dataclass(frozen=True)
class Target:
    """One reader of files from others."""

    name: str
    about: str
    work: Callable[[Choices, Path], None]

    def run(self, data: bytes) -> None:
        """Read what the bytes decide; poise's own errors are fine."""
        with contextlib.suppress(PoiseError):
            self.read(data)

    def read(self, data: bytes) -> None:
        """Read what the bytes decide."""
        self.work(Choices(data), _folder())


TARGETS: dict[str, Target] = {}
MAX_PIXELS = 1_000_000  # so that most of the time is spent on parsing


def target(about: str) -> Callable[[Callable[[Choices, Path], None]], Callable[[Choices, Path], None]]:
    """Add a function of decisions and of a folder for its files to the table."""

    def add(work: Callable[[Choices, Path], None]) -> Callable[[Choices, Path], None]:
        TARGETS[work.__name__] = Target(work.__name__, about, work)
        return work

    return add


@functools.cache
def _folder() -> Path:
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="poise-fuzz-", dir=memory if memory.is_dir() else None))


def clean_up() -> None:
    """Remove the files of the targets."""
    shutil.rmtree(_folder(), ignore_errors=True)
    _folder.cache_clear()


def _written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@functools.cache
def _images() -> list[bytes]:
    noise = np.random.default_rng(0).integers(0, 256, (23, 17, 4), dtype=np.uint8)
    rgb, rgba, grey = Image.fromarray(noise[..., :3]), Image.fromarray(noise), Image.fromarray(noise[..., 0])
    deep = Image.fromarray(noise[..., 0].astype(np.uint16) * 257)
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[Image.Image, str, dict[str, Any]]] = [
        (rgb, "JPEG", {"exif": exif}),
        (rgb, "JPEG", {"progressive": True}),
        (rgb.convert("CMYK"), "JPEG", {}),
        (rgb, "PNG", {"exif": exif}),
        (rgba, "PNG", {}),
        (rgb.convert("P"), "PNG", {"transparency": 3}),
        (deep, "PNG", {}),
        (grey.convert("1"), "PNG", {}),
        (rgb, "WEBP", {"exif": exif}),
        (rgba, "WEBP", {"lossless": True}),
        (rgb.convert("P"), "GIF", {}),
        (rgb.convert("P"), "GIF", {"save_all": True, "append_images": [grey.convert("P")]}),
        (rgb, "BMP", {}),
        (grey.convert("1"), "BMP", {}),
        (rgb, "TIFF", {"compression": "tiff_lzw"}),
        (deep, "TIFF", {}),
        (rgb, "TIFF", {"save_all": True, "append_images": [grey]}),
        (grey.convert("F"), "TIFF", {}),
        (rgb, "TIFF", {"compression": "tiff_adobe_deflate", "exif": exif}),
    ]
    found = []
    for image, form, options in kinds:
        sink = io.BytesIO()
        image.save(sink, form, **options)
        found.append(sink.getvalue())
    return found


@target("read_image: JPEG, PNG, WebP, GIF, BMP and TIFF in several modes")
def images(choices: Choices, folder: Path) -> None:
    from poise.images import read_image

    allow_truncated = bool(choices.number(2))
    content = edited_bytes(choices, _images())
    loaded = read_image(content, allow_truncated=allow_truncated, max_pixels=MAX_PIXELS)
    assert loaded.image.mode == "RGB"
    assert 0 < loaded.image.width * loaded.image.height <= MAX_PIXELS


RUN = {
    "name": "x",
    "title": "y",
    "model": "tiny",
    "datasets": ["dtd", "folder:x"],
    "methods": ["tpt", "kld+cats | cots"],
    "options": {"tpt": {"lr": 0.005}, "all": {"steps": 2}, "kld+cats": {"t_max": 5.0, "cots": {"selection": 0.5}}},
    "seeds": [1, 2],
    "limit": 3,
    "views": 8,
    "view_engine": "pil",
    "augmix": "auto",
    "template": "a photo of a {}.",
    "framework": "dynaprompt",
    "framework_options": {"size": 3},
    "init": "template",
    "calibrate": 0,
    "coverage": 0.9,
    "max_error": 0.05,
    "batch_size": 2,
    "chunk": 4,
    "device": "cpu",
    "dtype": "float32",
    "data": "d",
    "out": "o",
    "workers": 1,
    "engine": "local",
    "address": "",
    "actors": 0,
    "temperature": 1.5,
    "runs": [{"views": 4}, {}],
}
ASSIGNMENTS = (
    "views=3",
    "options.tpt.lr=0.1",
    "options.kld+cats | cots.cots.selection=0.1",
    "seeds=[1,2]",
    "framework_options.size=2",
    "temperature=2",
    "options.all.steps=2",
    "options=3",
    "a.b.c=1",
)


@target("bench run --config FILE --set KEY=VALUE: the file, the options and all their checks")
def bench_config(choices: Choices, folder: Path) -> None:
    from poise.evaluate.config import build, override, read
    from poise.evaluate.resolve import check_init

    assignment = choices.one(ASSIGNMENTS).encode()
    if choices.number(3) == 2:
        assignment = edited_bytes(choices.part(7), [assignment])
    if choices.number(4) == 3:
        content = edited_bytes(choices, [as_toml(RUN).encode()])
    else:
        content = as_toml(edited_tree(choices, RUN)).encode("utf-8", "surrogatepass")
    for values in read(_written(folder, "run.toml", content)):
        config, _ = build(override(values, [assignment.decode("utf-8", "replace")]))
        check_init(config)
        config.digest()
        config.run_id  # noqa: B018


def _model_configs() -> dict[str, Any]:
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic", "resize_mode": "squash"}
    timm = {"timm_model_name": "resnet10t", "timm_pool": "avg", "timm_proj": "linear", "image_size": 32}
    return {
        "vit": {"model_cfg": {"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}, "preprocess_cfg": preprocess},
        "timm": {"model_cfg": {"embed_dim": 16, "vision_cfg": timm, "text_cfg": text}, "preprocess_cfg": preprocess},
    }


@target("open_clip_config.json of a model folder, up to the comparison with its weights")
def model_config(choices: Choices, folder: Path) -> None:
    from poise.backbones.loaders import openclip_load

    seed = choices.one(list(_model_configs().values()))
    path = _written(folder, "open_clip_config.json", edited_json(choices, seed))
    openclip_load._read_config(path, local=True)


@functools.cache
def _tiny() -> Any:
    from poise.backbones import load_model

    torch.set_num_threads(1)
    return load_model("tiny", device="cpu")


@target("labels files and lists of labels, up to their tokens")
def labels(choices: Choices, folder: Path) -> None:
    from poise.prompts import tokenise
    from poise.prompts.labels import check_labels, read_labels

    seeds = [b"cat\ndog\n", "caf\u00e9\ncafe\u0301\n".encode("utf-8"), b"\xef\xbb\xbfa &amp; b\r\nx_y\r\n"]
    names = read_labels(_written(folder, "labels.txt", edited_bytes(choices, seeds)))
    check_labels(names)
    tokenise(_tiny(), names[:20])
