"""A folder with the small files that printed commands name, and the options that make these commands quick."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from poise.images.samples import sample_images
from tests.data import trees
from tests.report import made

LABELLED = {"tabby cat": "chelsea.png", "cup of coffee": "coffee.png", "motorcycle": "motorcycle_left.png"}
OPTIONS = {  # options that are typed win, so the commands mean what they say
    "POISE_CLASSIFY_VIEWS": "6",
    "POISE_CALIBRATE_VIEWS": "6",
    "POISE_BENCH_RUN_MODEL": "tiny",
    "POISE_BENCH_RUN_VIEWS": "6",
    "POISE_BENCH_RUN_LIMIT": "2",
    "POISE_BENCH_RUN_SEEDS": "1",
    "POISE_BENCH_RUN_DATA": "DATA",
    "POISE_DATA": "DATA",
}
for _fit in ("COOP", "COCOOP", "MAPLE", "FPP", "STATS", "TIP_ADAPTER"):
    OPTIONS[f"POISE_FIT_{_fit}_MODEL"] = "tiny"
    OPTIONS[f"POISE_FIT_{_fit}_EPOCHS"] = "1"
    OPTIONS[f"POISE_FIT_{_fit}_STEPS"] = "2"
    OPTIONS[f"POISE_FIT_{_fit}_AUGMENT"] = "0"


def example_images() -> dict[str, Image.Image]:
    """The example images by file name."""
    return {path.name: Image.open(path).convert("RGB") for path in sample_images()}


def prepare(folder: Path) -> None:
    """Write the files."""
    images = example_images()
    for file in ("image.jpg", "cat.jpg", "images/chelsea.jpg", "photos/chelsea.jpg"):
        _write(images["chelsea.png"], folder / file)
    _write(images["rocket.jpg"], folder / "images" / "rocket.jpg")
    (folder / "labels.txt").write_text("tabby cat\ncup of coffee\nmotorcycle\nrocket\n")
    for label, name in LABELLED.items():
        for number in range(12):
            _write(_cut(images[name], number), folder / "labelled" / label / f"{number}.jpg")
        _write(_cut(images[name], 12), folder / "new" / f"{label.split()[-1]}.jpg")
    for dataset in ("caltech101", "eurosat", "dtd"):
        below = trees.build(dataset, folder / "DATA")
        for path, label, _ in trees.split_entries(dataset)["train"]:
            trees.write(below / path, trees.picture(label))
    trees.build("imagenet", folder / "DATA")
    (folder / "pets").symlink_to("labelled")
    (folder / "cifar100").symlink_to("labelled")
    made.write_features(made.write_run(folder / "FINISHED", methods=(*made.METHODS, "tpt | cots")))
    made.write_run(folder / "CALIBRATED", images=300, config={"calibrate": 100, "coverage": 0.9, "max_error": 0.6})


def _cut(image: Image.Image, number: int) -> Image.Image:
    """A different part of the image for each number; no part looks like a copy of another."""
    width, height = image.size
    left, upper = width * (number % 4) // 12, height * (number // 4) // 12
    return image.crop((left, upper, left + 3 * width // 4, upper + 3 * height // 4))


def _write(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.resize((240, 200)).save(path)
