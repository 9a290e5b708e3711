"""Speed of poise against the plain published loop, in one run: ``python benchmarks/speed.py --help``.

Parts: compute (views given: the image tower, the text side and the whole step), text (features given), methods (seven
against one), classes (cost and memory against the number of labels), views (made on the device against PIL), end (from
JPEG bytes to probabilities).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from fixtures import encoder_of, jpegs, labels, random_clip
from open_clip.model import CLIP
from plain import PlainLoop, PlainViews, plain_loader
from torch import Tensor

from poise import methods
from poise.backbones.compiling import compile_images
from poise.backbones.encoder import Encoder
from poise.backbones.openclip_load import CONFIG_NAME, build
from poise.backbones.pocket import FOLDER as POCKET
from poise.backbones.tiny import tiny_model
from poise.evaluate.flow import flow
from poise.evaluate.prepare import ahead
from poise.images import Picture, read_image
from poise.prompts import start_prompt, tokenise
from poise.tuning import Tuner
from poise.types import ClassTokens
from poise.views import ViewPlan, make_views, make_views_batched, plan_views

PARTS = ("compute", "text", "methods", "classes", "views", "end")
LONG = 100_000  # images that a long run is told to expect


@dataclass
class Bench:
    """The models under test and what was measured."""

    options: argparse.Namespace
    device: torch.device
    plain: CLIP
    encoder: Encoder
    rows: list[dict[str, Any]] = field(default_factory=list)

    def note(self, part: str, **values: Any) -> None:
        self.rows.append({"part": part, **values})
        shown = "  ".join(f"{key}={_short(value)}" for key, value in values.items())
        print(f"{part:8s} {shown}", flush=True)

    def tuner(self, classes: ClassTokens, names: Sequence[str] = ("tpt",), expected: int = LONG) -> Tuner:
        return Tuner(self.encoder, classes, [methods.get(name) for name in names], expected_images=expected)

    def plain_loop(self, classes: ClassTokens) -> PlainLoop:
        start = start_prompt(self.encoder, classes).context[0].float()
        return PlainLoop(self.plain, classes, start)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, work: Callable[[], Any], *, repeats: int = 3, warm: int = 1) -> float:
        """Median of some runs."""
        for _ in range(warm):
            work()
        taken = []
        for _ in range(repeats):
            self.sync()
            began = time.perf_counter()
            work()
            self.sync()
            taken.append(1000 * (time.perf_counter() - began))
        return statistics.median(taken)

    def peak(self, work: Callable[[], Any]) -> float:
        """GiB at the highest point, all that is kept from before included."""
        if self.device.type != "cuda":
            work()
            return float("nan")
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        work()
        self.sync()
        return torch.cuda.max_memory_allocated() / 2**30


def compute(bench: Bench) -> None:
    """Views are there already: one image at a time as published, against batches."""
    options = bench.options
    size = bench.encoder.image.size
    views = torch.randn(options.batch, options.views, 3, size, size, device=bench.device, dtype=bench.encoder.dtype)
    with torch.no_grad():
        bare = bench.milliseconds(lambda: bench.encoder.encode_images(views)) / options.batch
    for count in options.classes:
        classes = tokenise(bench.encoder, labels(count))
        tuner = bench.tuner(classes)
        began = time.perf_counter()
        tuner.predict(bench.encoder.encode_images(views[:1]))
        bench.sync()
        setup = time.perf_counter() - began
        found: dict[str, Tensor] = {}

        def ours(tuner: Tuner = tuner, found: dict[str, Tensor] = found) -> None:
            found["probs"] = tuner.predict(bench.encoder.encode_images(views))["tpt"].probs

        mine = bench.milliseconds(ours) / options.batch
        own_peak = bench.peak(ours)
        short = bench.tuner(classes, expected=0)  # as for a single image: nothing is prepared
        unprepared = bench.milliseconds(partial(_step, bench, short, views)) / options.batch
        short_peak = bench.peak(partial(_step, bench, short, views))
        short_probs = _step(bench, short, views)
        del tuner, short, ours  # and with them what they keep on the device
        loop = bench.plain_loop(classes)
        rows = [loop(_pictures(views[row])) for row in range(options.plain_images)]
        theirs = bench.milliseconds(lambda loop=loop: loop(_pictures(views[0])), repeats=options.plain_images)
        plain_peak = bench.peak(lambda loop=loop: loop(_pictures(views[0])))
        wanted = torch.stack(rows)
        gap, short_gap = ((wanted - probs[: len(rows)]).abs() for probs in (found["probs"], short_probs))
        bench.note("compute", classes=count, plain_ms=theirs, ours_ms=mine, times=theirs / mine, bare_ms=bare,
                   of_bare=mine / bare, short_run_ms=unprepared, short_of_bare=unprepared / bare, setup_s=setup,
                   plain_gib=plain_peak, ours_gib=own_peak, mean_gap=gap.mean().item() * count,
                   short_gib=short_peak, short_mean_gap=short_gap.mean().item() * count)  # fmt: skip


def text(bench: Bench) -> None:
    """Image features are there already: the text side alone."""
    options = bench.options
    for count in options.classes:
        classes = tokenise(bench.encoder, labels(count))
        features = _features(bench, options.batch)
        took = {}
        for name, expected in (("jacobian", LONG), ("backward", 0)):
            tuner = bench.tuner(classes, expected=expected)
            took[name] = bench.milliseconds(partial(tuner.predict, features)) / options.batch
        prompt = tuner.predict(features)["tpt"].prompt
        forward = bench.milliseconds(partial(tuner.texts.features, prompt)) / options.batch
        bench.note("text", classes=count, ours_ms=took["jacobian"], backward_ms=took["backward"], forward_ms=forward)


def several(bench: Bench) -> None:
    """Seven methods against one, 47 classes."""
    options = bench.options
    size = bench.encoder.image.size
    views = torch.randn(options.batch, options.views, 3, size, size, device=bench.device, dtype=bench.encoder.dtype)
    classes = tokenise(bench.encoder, labels(47))
    took = {}
    for name, chosen in (("one", ["kld+cats"]), ("seven", methods.names())):
        tuner = bench.tuner(classes, chosen)
        took[name] = bench.milliseconds(lambda t=tuner: t.predict(bench.encoder.encode_images(views))) / options.batch
    bench.note("methods", one_ms=took["one"], seven_ms=took["seven"], ratio=took["seven"] / took["one"])


def scaling(bench: Bench) -> None:
    """The whole step from 10 to 10,000 classes."""
    options = bench.options
    size = bench.encoder.image.size
    views = torch.randn(options.batch, options.views, 3, size, size, device=bench.device, dtype=bench.encoder.dtype)
    for count in options.scaling:
        tuner = bench.tuner(tokenise(bench.encoder, labels(count)))
        work = partial(_step, bench, tuner, views)
        took = bench.milliseconds(work, repeats=2) / options.batch
        bench.note("classes", classes=count, ours_ms=took, ours_gib=bench.peak(work))


def make(bench: Bench) -> None:
    """Views of one picture with AugMix: PIL on one core against the device."""
    options = bench.options
    pictures = [read_image(file) for file in jpegs(options.batch)]
    plans = [_plan(picture, options.views) for picture in pictures]
    images = [picture.image for picture in pictures]
    batched = partial(make_views_batched, images, bench.encoder.image, plans, bench.device, dtype=bench.encoder.dtype)
    ours = bench.milliseconds(batched) / len(images)
    theirs = bench.milliseconds(lambda: make_views(images[0], bench.encoder.image, plans[0]), repeats=2)
    spread = torch.tensor(bench.encoder.image.std)[:, None, None] * 255
    gap = (make_views(images[0], bench.encoder.image, plans[0]) - batched()[0].float().cpu()) * spread
    bench.note("views", pil_ms=theirs, ours_ms=ours, times=theirs / ours, mean_gap_of_255=gap.abs().mean().item())


def end(bench: Bench) -> None:
    """JPEG bytes to probabilities with AugMix, 47 classes."""
    options = bench.options
    classes = tokenise(bench.encoder, labels(47))
    files = jpegs(min(options.images, 64))
    wanted = _plain_answers(bench, classes, files[:2])
    plain_rate = _plain_end(bench, classes, (files * 9)[: options.workers * (1 + options.plain_images)])
    tuner = bench.tuner(classes)
    many = (files * (options.images // len(files) + 1))[: options.images]
    _ours_end(bench, tuner, many[: 2 * options.batch])
    bench.sync()
    began = time.perf_counter()
    found = _ours_end(bench, tuner, many)
    rate = len(many) / (time.perf_counter() - began)
    memory = bench.peak(lambda: _ours_end(bench, tuner, many[: 4 * options.batch]))
    gap = (wanted - found[: len(wanted)]).abs().mean().item() * 47
    bench.note("end", classes=47, plain_per_s=plain_rate, ours_per_s=rate, times=rate / plain_rate, ours_gib=memory,
               mean_gap=gap, workers=options.workers)  # fmt: skip


def _plain_end(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> float:
    """Images per second of the plain loop; the clock starts when every worker has delivered once."""
    dataset = PlainViews(files, bench.encoder.image, views=bench.options.views)
    loader = plain_loader(dataset, workers=bench.options.workers, pin=bench.device.type == "cuda")
    loop, first, began = bench.plain_loop(classes), bench.options.workers, 0.0
    for index, views in enumerate(loader):
        loop(views).cpu()
        if index + 1 == first:
            began = time.perf_counter()
    return (len(files) - first) / (time.perf_counter() - began)


def _plain_answers(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> Tensor:
    """The plain loop's probabilities on the PIL views that our plans describe."""
    loop = bench.plain_loop(classes)
    made = (make_views(picture.image, bench.encoder.image, _plan(picture, bench.options.views))
            for picture in map(read_image, files))  # fmt: skip
    return torch.stack([loop(_pictures(views)).cpu() for views in made])


def _ours_end(bench: Bench, tuner: Tuner, files: Sequence[bytes]) -> Tensor:
    options, encoder = bench.options, bench.encoder
    on_device = bench.device.type == "cuda"

    def prepare(file: bytes) -> tuple[Picture, ViewPlan]:
        picture = read_image(file)
        return picture, _plan(picture, options.views)

    def views(batch: Sequence[tuple[Picture, ViewPlan]]) -> Tensor:
        images, plans = [picture.image for picture, _ in batch], [plan for _, plan in batch]
        return make_views_batched(images, encoder.image, plans, bench.device, dtype=encoder.dtype)

    def answer(batch: Sequence[tuple[Picture, ViewPlan]], made: Tensor) -> Tensor:
        return tuner.predict(encoder.encode_images(made))["tpt"].probs

    threads = options.threads
    prepared = ahead(prepare, files, threads=threads, window=max(2 * options.batch, 2 * threads))
    batches = _batches(prepared, options.batch)
    if on_device:
        return torch.cat([found.cpu() for _, found in flow(batches, bench.device, views, answer) if found is not None])
    return torch.cat([answer(batch, views(batch)).cpu() for batch in batches])


def _batches(stream: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(stream, size)):
        yield batch


def _pictures(views: Tensor) -> list[Tensor]:
    """[V, 3, S, S] as the plain loop's loader gives it."""
    return list(views.float().split(1))


def _step(bench: Bench, tuner: Tuner, views: Tensor) -> Tensor:
    return tuner.predict(bench.encoder.encode_images(views))[tuner.methods[0].name].probs


def _plan(picture: Picture, views: int) -> ViewPlan:
    return plan_views(picture.image.size, views=views, key=picture.key, augmix=True)


def _features(bench: Bench, images: int) -> Tensor:
    width = bench.encoder.encode_classes(tokenise(bench.encoder, ["cat"]), start_prompt(
        bench.encoder, tokenise(bench.encoder, ["cat"]))).shape[-1]  # fmt: skip
    made = torch.randn(images, bench.options.views, width, device=bench.device)
    return torch.nn.functional.normalize(made, dim=-1)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", default="ViT-B-16", help="open_clip architecture (random weights), pocket, local-dir:PATH"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--classes", type=_numbers, default=[10, 47, 397, 1000])
    parser.add_argument("--scaling", type=_numbers, default=[10, 100, 1000, 10_000])
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="images that poise takes together")
    parser.add_argument("--images", type=int, default=512, help="of poise's end-to-end run")
    parser.add_argument("--plain-images", type=int, default=6, help="of the plain loop; end to end, for each worker")
    parser.add_argument("--workers", type=int, default=4, help="processes that cut views for the plain loop")
    parser.add_argument("--threads", type=int, default=8, help="threads that decode for poise")
    parser.add_argument("--compile", action="store_true", help="compile the image tower")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
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


def _trained(name: str) -> bool:
    return name == "pocket" or name.startswith("local-dir:")


def main() -> int:
    options = _options()
    device = torch.device(options.device)
    torch.manual_seed(0)
    model = _models(options.model)
    half = torch.float16 if device.type == "cuda" else torch.float32
    bench = Bench(options, device, model.to(device), encoder_of(model, device, half))
    weights = "its own" if _trained(options.model) else "random"
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(
        f"{options.model} with {weights} weights, {where}, torch {torch.__version__}, {options.views} views", flush=True
    )
    if options.compile:
        began = time.perf_counter()
        compile_images(bench.encoder)
        size = bench.encoder.image.size
        bench.encoder.encode_images(torch.zeros(1, bench.encoder.chunk, 3, size, size, device=device, dtype=half))
        bench.sync()
        bench.note("compile", seconds=time.perf_counter() - began)
    jobs = dict(zip(PARTS, (compute, text, several, scaling, make, end), strict=True))
    for part in options.parts.split(","):
        jobs[part](bench)
    if options.json:
        facts = {"device": where, "model": options.model, "weights": weights, "torch": torch.__version__}
        options.json.write_text(json.dumps({**facts, "views": options.views, "rows": bench.rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
