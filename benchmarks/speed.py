"""Speed of poise against the plain published loop, in one run: ``python benchmarks/speed.py --help``.

Parts: compute (the whole step, from views), text (the text tower, from features), methods (seven against one), peers
(other papers' methods, against bare encoding), classes (time and memory by the number of labels), views (cut on the
device against PIL), end (from JPEG bytes to probabilities), each (seconds per image of every method, as a table),
float8 (encoding and end in float8 against float16).
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch
from bench import Bench, plan_of, split_views
from each_method import each_method
from end import end
from fixtures import encoder_of, random_clip
from inputs import jpegs, labels
from open_clip.model import CLIP
from torch import Tensor

from poise import methods
from poise.backbones.encoder import Encoder
from poise.backbones.loaders.openclip_load import CONFIG_NAME, build
from poise.backbones.loaders.pocket import FOLDER as POCKET
from poise.backbones.loaders.pocket import load_pocket
from poise.backbones.loaders.tiny import tiny_model
from poise.images import read_image
from poise.prompts import init_prompt, tokenise
from poise.tuning import Tuner
from poise.views.batched import make_views_batched
from poise.views.pil.crops import make_views

PARTS = ("compute", "text", "methods", "peers", "classes", "views", "end", "each", "float8")


def compute(bench: Bench) -> None:
    """Measure tuning from given views: one image at a time as published, against batches."""
    options = bench.options
    views = _random_views(bench)
    with torch.no_grad():
        bare = bench.milliseconds(lambda: bench.encoder.encode_images(views)) / options.batch
    for count in options.classes:
        classes = tokenise(bench.encoder, labels(count))
        tuner = bench.tuner(classes)
        work = partial(_step, bench, tuner, views)
        ours, ours_peak = bench.milliseconds(work) / options.batch, bench.peak(work)
        probs = work()
        del tuner, work  # frees their memory on the device
        loop = bench.plain_loop(classes)
        expected = torch.stack([loop(split_views(views[row])) for row in range(options.plain_images)])
        plain = bench.milliseconds(lambda loop=loop: loop(split_views(views[0])), repeats=options.plain_images)
        plain_peak = bench.peak(lambda loop=loop: loop(split_views(views[0])))
        gap = (expected - probs[: len(expected)]).abs().mean().item() * count
        bench.note(
            "compute",
            classes=count,
            plain_ms=plain,
            ours_ms=ours,
            times=plain / ours,
            bare_ms=bare,
            of_bare=ours / bare,
            plain_gib=plain_peak,
            ours_gib=ours_peak,
            mean_gap=gap,
        )


def text(bench: Bench) -> None:
    """Measure the text tower from given image features: the whole step, and its two passes."""
    options = bench.options
    for count in options.classes:
        classes = tokenise(bench.encoder, labels(count))
        features, tuner = _random_features(bench), bench.tuner(classes)
        whole = bench.milliseconds(partial(tuner.predict, features)) / options.batch
        prompt, texts = tuner.predict(features)["tpt"].prompt, tuner.texts
        cotangent = texts.features(prompt)
        forward = bench.milliseconds(partial(texts.features, prompt)) / options.batch
        backward = bench.milliseconds(partial(texts.pullback_to_init, cotangent)) / options.batch
        bench.note("text", classes=count, ours_ms=whole, forward_ms=forward, backward_ms=backward)


def several(bench: Bench) -> None:
    """Measure seven methods against one, with 47 classes."""
    options = bench.options
    views = _random_views(bench)
    classes = tokenise(bench.encoder, labels(47))
    times = {}
    for name, chosen in (("one", ["kld+cats"]), ("seven", methods.names())):
        tuner = bench.tuner(classes, chosen)
        times[name] = bench.milliseconds(lambda t=tuner: t.predict(bench.encoder.encode_images(views))) / options.batch
    bench.note("methods", one_ms=times["one"], seven_ms=times["seven"], ratio=times["seven"] / times["one"])


def peers(bench: Bench) -> None:
    """Measure each method that tunes no prompt, each other one, and all together, as shares of encoding the views."""
    options = bench.options
    views = _random_views(bench)
    with torch.no_grad():
        features = bench.encoder.encode_images(views)
        bare = bench.milliseconds(lambda: bench.encoder.encode_images(views)) / options.batch
    single = ["zero-shot", "zero-shot | sals", "zero-shot | cots", "zero-shot | e-cots", *methods.names("peers")]
    together = [*methods.names(), *methods.names("peers"), "kld+cats | cots", "kld+cats | sals", "tpt | cots"]
    for count in options.classes:
        classes = tokenise(bench.encoder, labels(count))
        for chosen in ([[name] for name in [*single, "kld+cats"]]) + [together]:
            tuner = bench.tuner(classes, chosen)
            whole = bench.milliseconds(lambda t=tuner: t.predict(bench.encoder.encode_images(views))) / options.batch
            work = partial(tuner.predict, features)
            after, peak = bench.milliseconds(work) / options.batch, bench.peak(work)
            name = chosen[0] if len(chosen) == 1 else f"{len(chosen)} together"
            bench.note(
                "peers",
                classes=count,
                method=name,
                bare_ms=bare,
                whole_ms=whole,
                of_bare=whole / bare,
                after_encoding_ms=after,
                gib=peak,
            )


def scaling(bench: Bench) -> None:
    """Measure the whole step with 10 to 10,000 classes."""
    options = bench.options
    views = _random_views(bench)
    for count in options.scaling:
        tuner = bench.tuner(tokenise(bench.encoder, labels(count)))
        work = partial(_step, bench, tuner, views)
        ours = bench.milliseconds(work, repeats=2) / options.batch
        bench.note("classes", classes=count, ours_ms=ours, ours_gib=bench.peak(work))


def make(bench: Bench) -> None:
    """Measure the cutting of views with AugMix: PIL on one core against the device."""
    options = bench.options
    loaded = [read_image(file) for file in jpegs(options.batch)]
    plans = [plan_of(image, options.views) for image in loaded]
    images = [image.image for image in loaded]
    batched = partial(make_views_batched, images, bench.encoder.image, plans, bench.device, dtype=bench.encoder.dtype)
    ours = bench.milliseconds(batched) / len(images)
    pil = bench.milliseconds(lambda: make_views(images[0], bench.encoder.image, plans[0]), repeats=2)
    spread = torch.tensor(bench.encoder.image.std)[:, None, None] * 255
    gap = (make_views(images[0], bench.encoder.image, plans[0]) - batched()[0].float().cpu()) * spread
    bench.note(
        "views",
        pil_ms=pil,
        ours_ms=ours,
        device_ms=bench.device_milliseconds(batched) / len(images),
        times=pil / ours,
        mean_gap_of_255=gap.abs().mean().item(),
    )


def float8(bench: Bench) -> None:
    """Measure the image tower and the part end with float8 products, and with float16 before and after."""
    options, half = bench.options, bench.encoder
    eight = encoder_of(bench.plain, bench.device, torch.float16)
    eight.use_float8()
    views = _random_views(bench)
    exact = encoder_of(bench.plain, bench.device, torch.float32).encode_images(views[:2].float())
    cosines = [(encoder.encode_images(views[:2]) * exact).sum(-1).min().item() for encoder in (half, eight)]
    times = [
        bench.milliseconds(partial(encoder.encode_images, views)) / options.batch for encoder in (half, eight, half)
    ]
    bench.note(
        "float8",
        float16_ms=times[0],
        float8_ms=times[1],
        float16_again_ms=times[2],
        ratio=times[0] / times[1],
        least_cosine_float16=cosines[0],
        least_cosine_float8=cosines[1],
    )
    for encoder in (half, eight, half):
        bench.encoder = encoder
        end(bench)


def _step(bench: Bench, tuner: Tuner, views: Tensor) -> Tensor:
    return tuner.predict(bench.encoder.encode_images(views))[tuner.methods[0].name].probs


def _random_views(bench: Bench) -> Tensor:
    size, options = bench.encoder.image.size, bench.options
    return torch.randn(options.batch, options.views, 3, size, size, device=bench.device, dtype=bench.encoder.dtype)


def _random_features(bench: Bench) -> Tensor:
    classes = tokenise(bench.encoder, ["cat"])
    width = bench.encoder.encode_classes(classes, init_prompt(bench.encoder, classes)).shape[-1]
    features = torch.randn(bench.options.batch, bench.options.views, width, device=bench.device)
    return torch.nn.functional.normalize(features, dim=-1)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="ViT-B-16", help="open_clip architecture (random weights), pocket, local-dir:PATH"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"parts to run, in this order: {', '.join(PARTS)}")
    parser.add_argument("--classes", type=_numbers, default=[10, 47, 397, 1000])
    parser.add_argument("--scaling", type=_numbers, default=[10, 100, 1000, 10_000])
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="images per batch of poise")
    parser.add_argument("--end-batch", type=_numbers, help="batch sizes of the part end", metavar="N,N")
    parser.add_argument("--images", type=int, default=512, help="images of poise's end-to-end run")
    parser.add_argument(
        "--plain-images", type=int, default=6, help="images of the plain loop (in the part end: per worker)"
    )
    parser.add_argument("--workers", type=int, default=4, help="processes that cut views for the plain loop")
    parser.add_argument("--threads", type=int, default=8, help="threads (CUDA: processes) that read for poise")
    parser.add_argument("--memory", type=float, help="GiB of the GPU's memory that may be used")
    parser.add_argument("--repeats", type=int, default=3, help="runs of the part each, of which the median is taken")
    parser.add_argument("--json", type=Path, help="file for the measurements")
    return parser.parse_args()


def _models(name: str) -> CLIP:
    if name == "tiny":
        return tiny_model().eval().requires_grad_(False)
    if not _trained(name):
        return random_clip(name)
    folder = POCKET if name == "pocket" else Path(name.removeprefix("local-dir:"))
    config = json.loads((folder / CONFIG_NAME).read_text())["model_cfg"]
    model: CLIP = build(config, next(folder.glob("*.safetensors"))).eval().requires_grad_(False)  # type: ignore[assignment]
    return model


def _encoder(name: str, model: CLIP, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Return the encoder that users get: pocket has its own forward pass, others use open_clip's modules."""
    return load_pocket(device=device, dtype=dtype) if name == "pocket" else encoder_of(model, device, dtype)


def _trained(name: str) -> bool:
    return name == "pocket" or name.startswith("local-dir:")


def main() -> int:
    options = _options()
    device = torch.device(options.device)
    if options.memory:
        total = torch.cuda.get_device_properties(device).total_memory / 2**30
        torch.cuda.set_per_process_memory_fraction(options.memory / total, device.index or 0)
    torch.manual_seed(0)
    model = _models(options.model)
    half = torch.float16 if device.type == "cuda" else torch.float32
    bench = Bench(options, device, model.to(device), _encoder(options.model, model, device, half))
    weights = "its own" if _trained(options.model) else "random"
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{options.model} with {weights} weights, {where}, torch {torch.__version__}, {options.views} views", flush=True
    )
    works = (compute, text, several, peers, scaling, make, end, each_method, float8)
    jobs = dict(zip(PARTS, works, strict=True))
    for part in options.parts.split(","):
        jobs[part](bench)
    if options.json:
        facts = {"device": where, "model": options.model, "weights": weights, "torch": torch.__version__}
        options.json.write_text(json.dumps({**facts, "views": options.views, "rows": bench.rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
