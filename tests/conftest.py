"""What all tests share: one thread, no network, reproducible properties, and where real images may be."""

from __future__ import annotations

import atexit
import functools
import gc
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read once, when huggingface_hub is imported
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("POISE_PLUGINS", "")  # packages that happen to be installed do not change the tests
# Some virtual machines report AMX and trap its instructions, which ends the process of the first bfloat16 product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")  # an upper bound: older CPUs are not affected

import pytest
import torch
import typer.testing
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU; read once, when a kernel is defined
gc.disable()  # until all is imported: what is there then stays, and looking through it takes seconds each time
torch.set_num_threads(1)  # the tests are many and small, and run side by side
# A runner makes the parameters of all commands anew for each call, which takes as long as a small classification.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
settings.register_profile("poise", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("poise")

DATA = Path(os.environ.get("POISE_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item._nodeid = item.nodeid  # type: ignore[attr-defined]  # mutmut 3.8 reads it, and pytest 9 has it no more
    if DATA.is_dir():
        return
    skip = pytest.mark.skip(reason=f"no real images in {DATA}; set POISE_DATA to a folder in CoOp's layout")
    for item in items:
        if item.get_closest_marker("data"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    gc.freeze()
    atexit.register(gc.unfreeze)  # for libraries that report what is left of theirs
    gc.enable()


def pytest_runtest_setup() -> None:
    """Begin with one thread, also after a test that chose another number: answers depend on it, by rounding."""
    if torch.get_num_threads() != 1:
        torch.set_num_threads(1)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give `pytest -n 2` whole files in the order of collection: what a file prepares is then prepared once."""
    if config.option.dist != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # otherwise files with few tests are last, and those take longest
    return LoadFileScheduling(config, log)


@pytest.fixture(scope="session")
def data_root() -> Path:
    return DATA
