"""Ray on one machine: the same bytes as a local run, with a worker killed in the middle or not."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from evaluate.attempt import contents, make_pictures

from poise.errors import PoiseError
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.run import run

ray = pytest.importorskip("ray")
from poise.evaluate import cluster  # noqa: E402
from poise.evaluate.units import Unit  # noqa: E402
from poise.evaluate.worker import Finished  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def two_cores() -> Iterator[None]:
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("data") / "pictures")


def config(pictures: Path) -> RunConfig:
    return RunConfig(
        name="run", model="tiny", datasets=(f"folder:{pictures}",), methods=("zero-shot", "kld+cats"), seeds=(1, 2),
        views=4, chunk=3, batch_size=2, device="cpu",
    )  # fmt: skip


def settings(out: Path, engine: str = "ray") -> Settings:
    return Settings(out=str(out), engine=engine, actors=2, workers=1)


@pytest.fixture(scope="module")
def local(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("local")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run(config(pictures), settings(out, "local"))
    torch.set_num_threads(threads)
    return contents(out)


def test_two_workers_leave_the_bytes_of_a_local_run(pictures: Path, local: dict[str, bytes], tmp_path: Path) -> None:
    summary = run(config(pictures), settings(tmp_path))
    assert summary.computed == 8
    assert contents(tmp_path) == local


def test_a_killed_worker_costs_nothing(
    pictures: Path, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fate = tmp_path / "struck"

    class Mortal(cluster._Actor):
        def work(self, unit: Unit) -> Finished:
            done = super().work(unit)
            if unit.chunk == 2 and not fate.exists():  # in the middle: units before and after it are done as usual
                fate.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return done

    monkeypatch.setattr(cluster, "_Actor", Mortal)
    summary = run(config(pictures), settings(tmp_path / "runs"))
    assert fate.exists()
    assert summary.computed == 8
    assert contents(tmp_path / "runs") == local


def test_a_unit_that_kills_its_workers_is_given_up(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Suicide(cluster._Actor):
        def work(self, unit: Unit) -> Finished:
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    monkeypatch.setattr(cluster, "_Actor", Suicide)
    with pytest.raises(cluster.WorkersLost, match="3 workers died"):
        run(config(pictures), settings(tmp_path))


def test_refusals_come_through_as_they_are(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refuser(cluster._Actor):
        def work(self, unit: Unit) -> Finished:
            raise PoiseError("No.", hint="Really.")

    monkeypatch.setattr(cluster, "_Actor", Refuser)
    with pytest.raises(PoiseError, match="No"):
        run(config(pictures), settings(tmp_path))
