"""Reader processes: results, errors, and processes that die."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from poise.data.items import Item
from poise.errors import PoiseError, ReaderProcessError, UnreadableImageError
from poise.images import read_image
from poise.loading import processes as module
from poise.loading.overlap import map_ahead
from poise.loading.processes import ReaderProcesses
from poise.loading.sources import read_planned
from poise.results import Failure
from poise.views import ViewRecipe
from tests.evaluate.attempt import make_images


@pytest.fixture(scope="module")
def readers():
    with closing(ReaderProcesses(2)) as pool:
        yield pool


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    root = make_images(tmp_path_factory.mktemp("images"))
    (root / "broken.png").write_bytes(b"no image")
    return [Item(file.name, 0, str(file)) for file in sorted(root.rglob("*.png"))]


RECIPE = ViewRecipe(views=5, seed=3, augmix=True)


def test_processes_give_the_same_images_and_plans_as_this_process(readers, items) -> None:
    images = list(map_ahead(lambda item: readers.run(read_planned, item, RECIPE), items, threads=2, window=4))
    for item, image in zip(items, images, strict=True):
        expected = read_planned(item, RECIPE)
        if isinstance(expected, Failure):
            assert image == expected
            continue
        assert (image.source, image.notes) == (item.id, expected.notes)
        np.testing.assert_array_equal(image.pixels, expected.pixels)
        np.testing.assert_array_equal(image.plan.boxes, expected.plan.boxes)
        np.testing.assert_array_equal(image.plan.augmix.levels, expected.plan.augmix.levels)
        assert image.pixels.flags.writeable
    assert sum(isinstance(image, Failure) for image in images) == 1


def test_processes_do_not_import_torch(readers, items) -> None:
    readers.run(read_planned, items[0], RECIPE)
    assert readers.run(eval, "'torch' not in __import__('sys').modules")


def test_errors_keep_their_type_and_printed_output_does_no_harm(readers) -> None:
    readers.run(print, "printed by a reader process")
    with pytest.raises(UnreadableImageError, match="not an image"):
        readers.run(read_image, b"some bytes of text")
    assert readers.run(len, b"x" * 10_000_000) == 10_000_000


def test_a_process_that_dies_is_replaced(readers) -> None:
    with pytest.raises(ReaderProcessError):
        readers.run(os._exit, 3)
    assert [readers.run(abs, -n) for n in range(6)] == list(range(6))


def test_processes_that_cannot_start_raise_an_error(monkeypatch) -> None:
    monkeypatch.setattr(module.sys, "executable", "/bin/false" if os.path.exists("/bin/false") else "/usr/bin/false")
    with closing(ReaderProcesses(1)) as broken, pytest.raises(PoiseError) as caught:
        broken.run(abs, -1)
    assert caught.value.code == "readers_dont_start"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_processes_end_if_the_parent_is_killed() -> None:
    program = (
        "import os, time; from poise.loading.processes import ReaderProcesses; "
        "r = ReaderProcesses(2); print(r.run(os.getpid), r.run(os.getpid), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        children = [int(number) for number in parent.stdout.readline().split()]
        parent.kill()
    end = time.monotonic() + 20
    while any(_is_running(child) for child in children):
        assert time.monotonic() < end
        time.sleep(0.02)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as file:  # a zombie has ended, too
        return file.read().rsplit(")", 1)[1].split()[0] != "Z"
