"""Inputs of the benchmarks: labels of two or three common words, and random JPEG files."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

_FIRST = (
    "red blue green black white brown small large great little old new young wild dark bright cold warm soft hard "
    "long short tall high low deep wide round flat thin thick heavy light fast slow early late dry wet clean "
    "fresh sweet sour hot strong weak rich poor quiet loud open rough smooth sharp plain simple royal common "
    "golden silver iron steel stone wooden paper glass plastic rubber cotton summer winter spring autumn morning "
    "evening night desert forest mountain river ocean island village city garden kitchen office school modern "
    "ancient market northern southern eastern western american french german italian japanese indian "
)
_SECOND = (
    "cat dog horse cow sheep pig goat bear lion tiger wolf fox deer rabbit mouse snake lizard frog fish shark "
    "whale eagle owl hawk duck goose swan chicken crow spider bee ant butterfly tree flower rose grass leaf apple "
    "orange lemon banana bread cheese cake cup plate bowl knife fork spoon bottle box bag chair table bed lamp "
    "clock phone camera radio computer keyboard screen coin ring book pen letter map flag bell drum piano guitar "
    "violin car bus truck train plane boat ship bicycle wheel engine road bridge tower house church castle barn "
    "door window roof wall fence hat shirt shoe "
)


def labels(count: int) -> list[str]:
    """Return different labels; every tenth has a third word, so that lengths differ."""
    seconds = _SECOND.split()
    pairs = [(first, second) for second in seconds for first in _FIRST.split()]
    step = 61  # coprime to the number of pairs; consecutive labels share no word
    chosen = [pairs[index * step % len(pairs)] for index in range(count)]
    return [f"{a} {b} {seconds[i % 7]}" if i % 10 == 9 else f"{a} {b}" for i, (a, b) in enumerate(chosen)]


def jpegs(count: int, width: int = 500, height: int = 375, seed: int = 0) -> list[bytes]:
    """Return JPEG files with structure at several scales, about 60 KB each."""
    random = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        layers = [
            np.asarray(
                Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize((width, height))
            )
            for side in (3, 12, 48, 160)
        ]
        pixels = np.average(np.stack(layers).astype(np.float32), axis=0, weights=[4, 3, 2, 1])
        sink = io.BytesIO()
        Image.fromarray(pixels.astype(np.uint8)).save(sink, "JPEG", quality=90)
        files.append(sink.getvalue())
    return files
