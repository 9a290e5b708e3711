"""Jobs over shards: from tars against bare encoding, new labels for stored features, Ray against this process.

    python benchmarks/scale.py --parts tars,labels --model random-vit:B-16     # on a GPU
    python benchmarks/scale.py --parts ray,memory,driver --model tiny --device cpu --views 1    # needs the extra `ray`
    python benchmarks/scale.py --parts rounding --model pocket --views 16      # answers from features and from images

Images are random JPEG files of 500 x 375 pixels, about 60 KB each; features are random.
"""

from __future__ import annotations

import argparse
import json
import resource
import tarfile
import tempfile
import time
from dataclasses import asdict
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import random_vit  # noqa: F401  registers the model
import torch
from inputs import jpegs, labels
from PIL import Image

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.data.opening import open_images
from poise.data.stored_features import FORMAT, FeatureShard, Made, feature_table
from poise.images.samples import sample_images
from poise.inference.batch_sizes import default_batch_size
from poise.jobs.answer_table import Shown
from poise.jobs.run import Engine, run
from poise.jobs.workers import AnswerJob, EmbedJob, encode
from poise.parts import write_manifest, write_part
from poise.views import ViewRecipe


def main() -> None:
    options = _options()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts.split(","):
            parts = {"tars": tars, "labels": new_labels, "ray": ray, "rounding": rounding}
            parts |= {"memory": memory, "driver": partial(memory, engine=Engine("ray", actors=2))}
            parts[part](options, Path(folder))


def note(part: str, **facts: Any) -> None:
    rounded = {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps({"part": part, **rounded}), flush=True)


def make_tars(folder: Path, shards: int, images: int) -> str:
    files = jpegs(64)
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for at in range(images):
                info = tarfile.TarInfo(f"{at:06d}.jpg")
                content = files[(shard * images + at) % len(files)]
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
    return f"wds:{folder}/{{000..{shards - 1:03d}}}.tar"


def tars(options: argparse.Namespace, folder: Path) -> None:
    """Embed and classify from tars, with different numbers of readers, against encoding alone."""
    source = make_tars(folder, options.shards, options.images)
    encoder = load_model(options.model, device=options.device)
    for views, count in zip(options.views, options.counts, strict=True):
        bare = _bare(encoder, views)
        note("bare", views=views, images_per_s=bare)
        shards = open_images([source])[: max(2, count // options.images)]
        jobs: dict[str, Any] = {
            f"embed {readers} readers": EmbedJob(
                "", options.model, options.device, recipe=ViewRecipe(views), readers=readers
            )
            for readers in options.readers
        }
        if views == 1:
            chosen = {"labels": labels(100), "model": options.model, "method": ("zero-shot",), "device": options.device}
            jobs["zero-shot"] = AnswerJob("", chosen, readers=options.readers[-1])
        for name, job in jobs.items():
            rate, seconds = _rate(job, shards, folder / f"{views}-{name.split()[0]}-{time.monotonic_ns()}")
            note("tars", views=views, job=name, images_per_s=rate, seconds=seconds, share_of_bare=rate / bare)


def _bare(encoder: Any, views: int) -> float:
    """Images per second of the image tower alone, in the batches of a job."""
    size = default_batch_size(encoder.device, views)
    batch = torch.randn(size, views, 3, encoder.image.size, encoder.image.size, device=encoder.device).to(encoder.dtype)
    repeats = 20 if encoder.device.type == "cuda" else 2
    with torch.no_grad():
        encoder.encode_images(batch)
        _wait(encoder.device)
        began = time.perf_counter()
        for _ in range(repeats):
            encoder.encode_images(batch)
        _wait(encoder.device)
    return repeats * size / (time.perf_counter() - began)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rate(job: Any, shards: list[Any], out: Path) -> tuple[float, float]:
    """Images per second of a job whose worker is warm: the first shard is done before."""
    made = type(job)(**{**{name: getattr(job, name) for name in job.__dataclass_fields__}, "out": str(out)})
    out.mkdir(parents=True)
    worker = made.worker()
    list(worker.run([(0, shards[0])]))
    began = time.perf_counter()
    summary = run(made, shards[1:], Engine(), worker=worker)
    seconds = time.perf_counter() - began
    return summary.images / seconds, seconds


def make_features(folder: Path, encoder: Any, model: str, rows: int, per_part: int = 10_000) -> list[Any]:
    """Write random unit features of one view."""
    width = encoder.encode_images(torch.zeros(1, 1, 3, encoder.image.size, encoder.image.size)).shape[-1]
    made = Made(model, fingerprint(encoder), asdict(ViewRecipe(1)))
    write_manifest(str(folder), {"format": FORMAT, **asdict(made)})
    for part in range(rows // per_part):
        features = torch.nn.functional.normalize(torch.randn(per_part, 1, width, device=encoder.device), dim=-1)
        images = [
            {"source": f"{part}/{row}", "label": -1, "key": "", "notes": [], "error_code": None, "error_message": None}
            for row in range(per_part)
        ]
        table = feature_table(images, features.half().cpu().numpy(), made)
        write_part(str(folder), part, encode(table), {})
    return [FeatureShard(str(folder / f"part-{part:06d}.parquet")) for part in range(rows // per_part)]


def new_labels(options: argparse.Namespace, folder: Path) -> None:
    """Classify stored features with 100 and 1000 labels."""
    encoder = load_model(options.model, device=options.device)
    began = time.perf_counter()
    shards = make_features(folder / "features", encoder, options.model, options.rows)
    note("features", rows=options.rows, seconds_to_write=time.perf_counter() - began)
    for count in options.labels:
        chosen = {"labels": labels(count), "model": options.model, "method": ("zero-shot",), "device": options.device}
        job = AnswerJob(str(folder / f"answers-{count}"), chosen)
        worker = job.worker()
        list(worker.run([(0, shards[0])]))
        began, cpu = time.perf_counter(), time.process_time()
        summary = run(job, shards, Engine(), worker=worker)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        rate = summary.images / seconds
        note("labels", labels=count, rows=summary.images, seconds=seconds, cpu_seconds=cpu, rows_per_s=rate)


def ray(options: argparse.Namespace, folder: Path) -> None:
    """One thread in this process against one and two workers of one thread each; first shards are not counted.

    On a machine that others use, only the CPU time per image says how much Ray adds: it is that of this process and of
    all that it started, Ray's own processes included.
    """
    torch.set_num_threads(1)
    shards = open_images([make_tars(folder, options.shards, options.images)])
    rates, cpu = _steady(options, shards, folder / "local", Engine())
    note("ray", workers="local", images_per_s=rates, cpu_ms_per_image=1000 * cpu)
    from poise.cluster.connection import connect

    module = connect()
    for workers in (1, 2):
        found, added = _steady(options, shards, folder / f"ray-{workers}", Engine("ray", actors=workers))
        shares = {"share_of_locals": found / (workers * rates), "share_by_cpu": cpu / added}
        note("ray", workers=workers, images_per_s=found, cpu_ms_per_image=1000 * added, **shares)
    module.shutdown()


def _steady(options: argparse.Namespace, shards: list[Any], out: Path, engine: Engine) -> tuple[float, float]:
    """Images per second, and CPU seconds per image, after the first shard of each worker."""
    out.mkdir()
    job = EmbedJob(str(out), options.model, "cpu", recipe=ViewRecipe(options.views[0]), readers=1)
    marks: list[tuple[float, float]] = []
    run(job, shards, engine, watch=lambda done: marks.append((time.perf_counter(), _cpu_seconds())))
    (began, used), end = marks[max(1, engine.actors) - 1], marks[-1]
    images = (len(marks) - max(1, engine.actors)) * options.images
    return images / (end[0] - began), (end[1] - used) / images


def _cpu_seconds() -> float:
    """CPU time of this process and of all that it has started and that still run."""
    import_module("ray")  # which brings psutil
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def memory(options: argparse.Namespace, folder: Path, engine: Engine = Engine()) -> None:  # noqa: B008
    """The largest memory of this process, as rows grow; the worker is in it, too, unless the engine is Ray."""
    encoder = load_model(options.model, device="cpu")
    chosen = {"labels": labels(10), "model": options.model, "method": ("zero-shot",), "device": "cpu"}
    shards = make_features(folder / "rows", encoder, options.model, options.rows)
    job = AnswerJob(str(folder / "rows-answers"), chosen)
    rows = 0

    def watch(done: Any) -> None:
        nonlocal rows
        rows += done.images
        if rows % (options.rows // 10) == 0:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
            note("memory", rows=rows, peak_mib=peak)

    began = time.perf_counter()
    run(job, shards, engine, watch=watch)
    note("memory", rows=rows, seconds=time.perf_counter() - began)


def rounding(options: argparse.Namespace, folder: Path) -> None:
    """How far answers from stored features are from those of the images: 40 cuts of the sample images."""
    for path in sample_images():
        image = Image.open(path).convert("RGB")
        for cut in range(8):
            box = (10 * cut, 5 * cut, image.width - 12 * cut, image.height - 8 * cut)
            image.crop(box).save(folder / f"{path.stem}-{cut}.png")
    views, methods = options.views[-1], ("zero-shot", "zero", "mta", "tpt", "kld+cats")
    chosen = {"labels": labels(20), "model": options.model, "method": methods, "views": views, "device": options.device}
    sources = open_images([str(folder)])
    run(EmbedJob(str(folder / "f"), options.model, options.device, recipe=ViewRecipe(views)), sources, Engine())
    run(AnswerJob(str(folder / "a"), chosen, Shown(20)), sources, Engine())
    stored = [FeatureShard(str(folder / "f" / "part-000000.parquet"))]
    run(AnswerJob(str(folder / "b"), chosen, Shown(20)), stored, Engine())
    direct, again = (pq.read_table(folder / name / "part-000000.parquet").to_pylist() for name in "ab")
    for method in methods:
        pairs = [pair for pair in zip(direct, again, strict=True) if pair[0]["method"] == method]
        gaps = [abs(one["confidence"] - two["confidence"]) for one, two in pairs]
        changed = sum(one["label"] != two["label"] for one, two in pairs)
        note("rounding", method=method, views=views, images=len(pairs), labels_changed=changed, largest=max(gaps))


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="tars,labels")
    parser.add_argument("--model", default="random-vit:B-16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--images", type=int, default=512, help="of a shard")
    parser.add_argument("--views", type=_numbers, default=[1, 16, 64])
    parser.add_argument("--counts", type=_numbers, default=[8192, 3072, 1536], help="images by number of views")
    parser.add_argument("--readers", type=_numbers, default=[8, 16])
    parser.add_argument("--rows", type=int, default=1_000_000, help="stored features")
    parser.add_argument("--labels", type=_numbers, default=[100, 1000])
    return parser.parse_args()


if __name__ == "__main__":
    np.random.seed(0)
    main()
