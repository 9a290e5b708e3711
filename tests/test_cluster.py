"""Ray on one machine gives the results of a local run, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.cluster import stream
from poise.cluster.connection import connect, is_gpu
from poise.cluster.stream import Stream
from poise.errors import ClusterUnavailableError, InvalidOptionError, WorkersLostError
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.engines import engines
from poise.evaluate.run import run
from poise.evaluate.worker import WorkerSettings
from poise.jobs import run as jobs
from poise.jobs import workers
from tests.data.test_sources import write_shard
from tests.evaluate.attempt import contents, make_images

ray = pytest.importorskip("ray", reason="install the 'dev' or the 'ray' extra")

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def two_cores() -> Iterator[None]:
    """One Ray instance for all tests, as starting it takes longer than most of them."""
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def striker(mark: Path) -> Callable[[], None]:
    """Kills the process, as a failing machine would, the first time it is called in any process."""

    def strike() -> None:  # a local function, so that it is pickled by value: workers cannot import this file
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return strike


# Calls of workers that need no model and so start quickly.


def victim() -> Any:
    """Return a class of workers that a call can kill. It is local and so pickled by value: this file imports torch."""

    class Victim:
        def __init__(self, threads: int) -> None:
            assert threads >= 1

        def work(self, task: str) -> tuple[str, str]:
            if task == "bad":
                os.kill(os.getpid(), signal.SIGKILL)
            if task == "refused":
                raise InvalidOptionError("No.", hint="Really.")
            return task.upper(), os.getcwd()

    return Victim


def test_a_call_that_kills_its_workers_is_given_up(two_cores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths mean the same in a worker as here."""
    monkeypatch.setattr(stream, "ATTEMPTS", 1)  # each further one starts a process
    results = Stream(victim(), actors=2).run(["good", "bad"], name=lambda task: f"the task {task}")
    assert next(results) == ("good", ("GOOD", os.getcwd()))
    with pytest.raises(WorkersLostError, match=r"1 workers died while processing the task bad.* are kept"):
        next(results)


def test_errors_of_workers_are_raised_unchanged(two_cores: None) -> None:
    with pytest.raises(InvalidOptionError, match=r"^No. Really.$"):
        list(Stream(victim(), actors=1).run(["refused"]))
    with pytest.raises(InvalidOptionError, match="actors is -1"):
        Stream(victim(), actors=-1)


def test_unreachable_addresses_are_refused_at_once() -> None:
    """In a separate process, because a process that is already connected ignores the address."""
    code = (
        "import sys\n"
        "from poise.errors import PoiseError\n"
        "from poise.cluster.connection import connect\n"
        "for address in sys.argv[1:]:\n"
        "    try: connect(address)\n"
        "    except PoiseError as error: print(error.code, error)\n"
    )
    wrong = ["head", "ray://head:10001", "127.0.0.1:1"]
    done = subprocess.run([sys.executable, "-c", code, *wrong], capture_output=True, text=True, timeout=120)
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["invalid_option", "invalid_option", "no_cluster"], done.stderr
    assert "host:port" in lines[0]
    assert "ray job submit" in lines[1]
    assert "No Ray cluster is reachable at '127.0.0.1:1'" in lines[2]


@pytest.mark.parametrize("kind", [RuntimeError, Exception])  # Ray raises both
def test_the_message_of_ray_is_shown(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> None:
        raise kind("Version mismatch:\n the cluster has Ray 1.0")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(
        ClusterUnavailableError, match=r"at 'auto': Version mismatch: the cluster has Ray 1.0\. Start a cluster"
    ):
        connect("auto")


# `poise bench run --engine ray`


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images")


def config(images: Path) -> RunConfig:
    return RunConfig(
        name="run",
        model="tiny",
        datasets=(f"folder:{images}",),
        methods=("zero-shot", "kld+cats"),
        seeds=(1, 2),
        views=4,
        chunk=3,
        batch_size=2,
        device="cpu",
    )


def settings(out: Path) -> Settings:
    return Settings(out=str(out), engine="ray", actors=2, workers=1)


@pytest.fixture(scope="module")
def local(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("local")
    run(config(images), Settings(out=str(out), workers=1))
    return contents(out)


def test_two_workers_leave_the_bytes_of_a_local_run(
    two_cores: None, images: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    assert run(config(images), settings(tmp_path)).computed == 8
    assert contents(tmp_path) == local


def test_the_local_engine_refuses_an_address(images: Path) -> None:
    with pytest.raises(InvalidOptionError, match="--engine ray"):
        engines.get("local")(WorkerSettings(config(images), "data"), {}, "head:6379")


# `poise classify --engine ray`


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three tars of four images, of which one is text, and the last tar is truncated."""
    folder = tmp_path_factory.mktemp("album")
    images = make_images(folder / "images", classes=3, each=4)
    for number in range(3):
        files = {f"{at}.png": (images / f"class{number}" / f"{at}.png").read_bytes() for at in range(4)}
        write_shard(folder / f"{number}.tar", {**files, **({"2.png": b"no image"} if number == 1 else {})})
    last = folder / "2.tar"
    last.write_bytes(last.read_bytes()[:-12000])
    return f"wds:{folder}/{{0..2}}.tar"


def classified(album: str, out: Path, *arguments: str) -> Any:
    plain = ["--labels", "cat,dog,tree", "--model", "tiny", "--views", "4", "--device", "cpu", "--batch-size", "2"]
    chosen = [*plain, "--method", "zero-shot,kld+cats", "--out", f"{out}/", "--quiet"]
    return CliRunner().invoke(app, ["classify", album, *chosen, *arguments])


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for part in sorted(out.glob("*.parquet")) for row in pq.read_table(part).to_pylist()]


def test_workers_write_the_parts_of_a_local_run_also_if_one_is_killed(
    two_cores: None, album: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strike = striker(tmp_path / "struck")

    class Mortal(workers.AnswerWorker):
        def work(self, task: Any) -> Any:
            done = super().work(task)  # the part is written, and nobody is told
            strike()
            return done

    def mortal(job: Any, threads: int) -> Any:  # a local function, pickled by value
        return Mortal(job)

    local = classified(album, tmp_path / "local")
    monkeypatch.setattr(jobs, "make_worker", mortal)
    done = classified(album, tmp_path / "ray", "--engine", "ray", "--actors", "2")
    assert (tmp_path / "struck").exists()
    assert done.exit_code == local.exit_code == 3, done.output
    found, expected = rows(tmp_path / "ray"), rows(tmp_path / "local")
    assert [row["source"] for row in found] == [row["source"] for row in expected]
    assert [row["error_code"] for row in found if row["error_code"]] == ["unreadable_image", "bad_shard"]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)
        assert {**ours, **dict.fromkeys(NUMBERS)} == {**theirs, **dict.fromkeys(NUMBERS)}
    again = classified(album, tmp_path / "ray", "--resume")  # here, and nothing is left to do
    assert again.exit_code == 3
    assert rows(tmp_path / "ray") == found


NUMBERS = ("confidence", "margin", "entropy", "match", "top_probabilities")


def test_a_cluster_writes_parts_only(album: str, tmp_path: Path) -> None:
    plain = ["classify", album, "--labels", "cat,dog", "--model", "tiny"]
    refused = CliRunner().invoke(app, [*plain, "--engine", "ray"])
    assert "Add --out FOLDER/" in str(refused.exception)
    refused = CliRunner().invoke(app, [*plain, "--actors", "2"])
    assert "--engine ray" in str(refused.exception)


def test_ray_chooses_the_gpu_of_a_worker() -> None:
    assert is_gpu("cuda")
    assert is_gpu("cuda:0")
    assert not is_gpu("cpu")
    with pytest.raises(InvalidOptionError, match=r"'cuda:1' is not supported.*one GPU to each worker"):
        is_gpu("cuda:1")
