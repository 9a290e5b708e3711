"""Makes the records of the board and its page again: after the embedded weights, or what answers depend on, changed.

python tools/board.py                 # the record of images that scikit-image carries, and the page
python tools/board.py --data DATA     # also the one of two benchmarks in CoOp's layout
python tools/board.py --images .      # only the pictures of the first record, for `poise reproduce verify`
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from poise.evaluate.run import run
from poise.images.samples import sample_images
from poise.reproduce import board, record
from poise.reproduce.plans import plan
from poise.reproduce.reproduce import reproduce

BOARD = Path(__file__).parents[1] / "docs" / "board"
PAGE = BOARD / "records.html"
IMAGES = "package-images"
CLASSES = {  # PNG files, which every version of a decoder reads alike
    "astronaut": "astronaut",
    "brick": "brick wall",
    "camera": "man with a camera",
    "chelsea": "cat",
    "clock_motion": "clock",
    "coffee": "cup of coffee",
    "coins": "coins",
    "grass": "grass",
    "gravel": "gravel",
    "moon": "moon",
    "motorcycle_left": "motorcycle",
    "page": "page of a book",
}


def package_images(folder: Path) -> Path:
    """Write five pictures of each image that scikit-image carries: the whole one, and four corners of it."""
    source = sample_images()[0].parent
    for name, label in CLASSES.items():
        target = folder / IMAGES / label.replace(" ", "_")
        target.mkdir(parents=True)
        pixels = np.asarray(Image.open(source / f"{name}.png").convert("RGB"))
        height, width = (4 * side // 5 for side in pixels.shape[:2])
        parts = [
            pixels,
            pixels[:height, :width],
            pixels[:height, -width:],
            pixels[-height:, :width],
            pixels[-height:, -width:],
        ]
        for at, part in enumerate(parts):
            Image.fromarray(part).save(target / f"{at}.png")
    return folder / IMAGES


def make(name: str, data: str) -> Path:
    """Run a configuration of the board and put its record there."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # ids and names are then the same on every machine
        package_images(Path(folder))
        chosen = plan(str(BOARD / f"{name}.toml"), {"data": data, "out": str(Path(folder) / "runs")})
        done = reproduce(chosen, run, gate=False, partial=True, time=False, say=print)
        record.write(done.record, BOARD / f"{name}.json")
        os.chdir(BOARD)
    return BOARD / f"{name}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the benchmarks")
    parser.add_argument("--images", type=Path, help="only write the pictures of the first record into this folder")
    options = parser.parse_args()
    if options.images:
        print(package_images(options.images))
        return
    data = options.data
    print(make("pocket-package", "data"))
    if data:
        print(make("pocket-photos", str(Path(data).resolve())))
    print(board.write(BOARD, PAGE))


if __name__ == "__main__":
    main()
