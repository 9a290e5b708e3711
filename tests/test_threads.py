"""The number of threads, and work that is divided among them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poise import cores as cores_module
from poise import load_model, threads


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("text", "cores"),
    [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("-1 100000", None), ("", None)],
)
def test_quota_of_a_container(text: str, cores: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(cores_module, "QUOTA", tmp_path / "cpu.max")
    assert cores_module.available_cores() == (cores or 8)


@pytest.mark.usefixtures("eight_cores")
def test_no_quota_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores_module, "QUOTA", tmp_path / "none")
    monkeypatch.setattr(cores_module, "OLD_QUOTA", (tmp_path / "none", tmp_path / "none"))
    assert cores_module.available_cores() == 8


def test_parts_are_computed_in_order_by_threads_of_one_thread_each(two_threads: None) -> None:
    assert threads.map_parallel(lambda part: (part, torch.get_num_threads()), range(5)) == [(i, 1) for i in range(5)]
    assert torch.get_num_threads() == 2
    assert threads.map_parallel(lambda part: torch.is_grad_enabled(), range(3)) == [False] * 3
    assert torch.is_grad_enabled()


def test_a_part_may_divide_its_work_again(two_threads: None) -> None:
    nested = threads.map_parallel(lambda part: threads.map_parallel(lambda inner: part + inner, range(3)), range(4))
    assert nested == [[part + inner for inner in range(3)] for part in range(4)]


def test_an_error_in_a_part_is_raised(two_threads: None) -> None:
    with pytest.raises(ZeroDivisionError):
        threads.map_parallel(lambda part: 1 // part, range(3))


@pytest.mark.parametrize("model", ["tiny", "pocket"])
def test_features_do_not_depend_on_the_number_of_threads(model: str, two_threads: None) -> None:
    encoder = load_model(model, device="cpu")
    views = torch.randn(1, 5, 3, encoder.image.size, encoder.image.size, generator=torch.Generator().manual_seed(0))
    two = encoder.encode_images(views)
    torch.set_num_threads(1)
    torch.testing.assert_close(encoder.encode_images(views), two, atol=1e-6, rtol=0)


def test_the_environment_is_kept_unless_a_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    threads.set_threads()
    assert (os.environ["OMP_NUM_THREADS"], os.environ["OMP_WAIT_POLICY"]) == ("7", "ACTIVE")
    threads.set_threads(1)
    assert (os.environ["OMP_NUM_THREADS"], torch.get_num_threads()) == ("1", 1)
    torch.set_num_threads(before)


def test_threads_of_a_command_are_set_before_torch_is_imported() -> None:
    code = (
        "import os, sys\n"
        "from poise.cli import main\n"
        "sys.argv = ['poise', 'classify', 'samples', '--labels', 'a,a', '--threads', '1']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import torch\n"
        "print(torch.get_num_threads(), os.environ['OMP_WAIT_POLICY'])"
    )
    names = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "POISE_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "PASSIVE"], done.stderr
