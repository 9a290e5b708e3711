"""Ray on one machine gives the results of a local run, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.cluster.connection import connect, is_gpu
from poise.cluster.pool import Pool
from poise.errors import ClusterUnavailableError, InvalidOptionError, PoiseError, WorkersLostError
from poise.evaluate import ray_engine as cluster
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.engines import engines
from poise.evaluate.run import run
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, WorkerSettings
from poise.images import LoadedImage, read_image
from poise.inference import ray_classifier as cluster_classifier
from poise.loading.sources import NamedBytes
from poise.results import Failure
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


# The pool, with workers that need no model and so start quickly.


def test_a_task_that_kills_its_workers_is_given_up(two_cores: None) -> None:
    class Victim:
        def __init__(self, threads: int) -> None:
            pass

        def work(self, task: str) -> str:
            if task == "bad":
                os.kill(os.getpid(), signal.SIGKILL)
            return task.upper()

    answers = Pool(Victim, actors=1).run(["good", "bad"], name=lambda task: f"the task {task}")
    assert next(answers) == ("good", "GOOD")
    with pytest.raises(WorkersLostError, match=r"3 workers died while processing the task bad.* are kept"):
        next(answers)


def test_workers_that_die_at_once_are_given_up(two_cores: None) -> None:
    def die(threads: int) -> None:
        os._exit(1)

    with pytest.raises(WorkersLostError, match="3 workers died while starting"):
        list(Pool(die, actors=1).run([1]))


def test_a_cluster_without_room_for_all_workers_does_all_tasks(two_cores: None, tmp_path: Path) -> None:
    """Five workers are requested, two fit; relative paths mean the same in a worker as here."""

    class Reader:
        def __init__(self, threads: int) -> None:
            self.made = os.getpid()

        def work(self, task: int) -> tuple[int, bool, str]:
            return task, self.made == os.getpid(), os.getcwd()

    answers = dict(Pool(Reader, actors=5).run(range(20)))
    assert answers == {task: (task, True, os.getcwd()) for task in range(20)}


def test_errors_of_workers_are_raised_unchanged(two_cores: None) -> None:
    class Refuser:
        def __init__(self, threads: int) -> None:
            pass

        def work(self, task: int) -> None:
            raise InvalidOptionError("No.", hint="Really.")

    with pytest.raises(InvalidOptionError, match=r"^No. Really.$"):
        list(Pool(Refuser, actors=1).run([1]))
    with pytest.raises(InvalidOptionError, match="actors is -1"):
        Pool(Refuser, actors=-1)


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


def test_a_killed_worker_costs_nothing(
    two_cores: None, images: Path, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, one of them killed, leave the bytes of a local run."""
    strike = striker(tmp_path / "struck")

    class Mortal(cluster.UnitWorker):
        # Otherwise pickle finds the method of UnitWorker under this name.
        def __init__(self, job: WorkerSettings, threads: int) -> None:
            super().__init__(job, threads)

        def work(self, unit: Unit) -> Finished:
            done = super().work(unit)
            if unit.chunk == 2:  # in the middle of the run
                strike()
            return done

    monkeypatch.setattr(cluster, "UnitWorker", Mortal)
    summary = run(config(images), settings(tmp_path / "runs"))
    assert (tmp_path / "struck").exists()
    assert summary.computed == 8
    assert contents(tmp_path / "runs") == local


def test_the_local_engine_refuses_an_address(images: Path) -> None:
    with pytest.raises(InvalidOptionError, match="--engine ray"):
        engines.get("local")(WorkerSettings(config(images), "data"), {}, "head:6379")


# `poise classify --engine ray`


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Nine images, of which one is text and one is missing: three batches, split as in a local run."""
    folder = make_images(tmp_path_factory.mktemp("album"), classes=1, each=7)
    (folder / "class0" / "3bad.png").write_text("no image")
    return [str(folder), str(folder / "missing.png")]


def classified(*arguments: str) -> Any:
    plain = ["--labels", "cat,dog,tree", "--model", "tiny", "--views", "4", "--device", "cpu", "--format", "csv"]
    return CliRunner().invoke(app, ["classify", *arguments, *plain, "--method", "zero-shot,kld+cats"])


def on_ray(*arguments: str) -> Any:
    return classified(*arguments, "--engine", "ray", "--actors", "2")


def test_a_cluster_prints_what_a_local_classify_prints(
    two_cores: None, album: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two workers, of which one is killed, and with images that cannot be read."""
    strike = striker(tmp_path / "struck")

    class Mortal(cluster_classifier.ShareClassifier):
        def work(self, share: Any, details: bool) -> Any:
            outcomes = super().work(share, details)
            strike()
            return outcomes

    monkeypatch.setattr(cluster_classifier, "ShareClassifier", Mortal)
    done, expected = on_ray(*album), classified(*album)
    assert (tmp_path / "struck").exists()
    assert done.stdout == expected.stdout
    assert done.exit_code == expected.exit_code == 3
    assert done.stdout.count("\n") == 1 + 2 * 7 + 2
    assert "3bad.png' is not an image: its content is text" in done.stdout
    assert "missing.png' does not exist" in done.stdout


class PoolOfThisProcess:
    """Computes each task here, as one worker would."""

    on_gpu = False

    def __init__(self, make: Any, **options: Any) -> None:
        self._worker = make(threads=1)

    def run(self, tasks: Any, *, arguments: Any, name: Any) -> Any:
        for task in tasks:
            yield task, self._worker.work(*arguments(task))


def test_one_image_is_enough(album: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_classifier, "Pool", PoolOfThisProcess)
    image = str(Path(album[0]) / "class0" / "0.png")
    done = on_ray(image)
    assert (done.exit_code, done.stdout) == (0, classified(image).stdout)


class LosingPool:
    """Returns the second, first and fourth batch, and loses the third."""

    on_gpu = False

    def __init__(self, make: Any, **options: Any) -> None:
        pass

    def run(self, tasks: Any, *, arguments: Any, name: Any) -> Any:
        for number in (1, 0, 3):
            share, _ = arguments(tasks[number])
            yield tasks[number], [Failure(item.name, "code", "why not") for item in share]
        raise WorkersLostError(f"3 workers died with {name(tasks[2])}.")


def test_finished_results_are_printed_before_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_images(tmp_path, classes=1, each=8) / "class0"
    monkeypatch.setattr(cluster_classifier, "Pool", LosingPool)
    done = on_ray(str(folder), "--batch-size", "2")
    assert isinstance(done.exception, PoiseError)
    assert f"the images '{folder / '4.png'}' to '{folder / '5.png'}'" in str(done.exception)
    assert [Path(line.split(",")[0]).stem for line in done.stdout.splitlines()[1:]] == ["0", "1", "2", "3", "6", "7"]
    assert "stopped after 6 of 8 images" in done.stderr


def test_large_and_missing_files_are_read_before_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make_images(tmp_path, classes=1, each=1) / "class0" / "0.png"
    sent = cluster_classifier.send(image)
    assert isinstance(sent, NamedBytes)
    monkeypatch.setattr(cluster_classifier, "LARGEST_SENT", 10)
    read = cluster_classifier.send(image)
    received = read_image(sent.content, name=sent.name)
    assert isinstance(read, LoadedImage)
    assert (read.source, read.key) == (received.source, received.key) == (str(image), read.key)
    assert isinstance(cluster_classifier.send(tmp_path), Failure)


def test_an_invalid_batch_size_is_refused(album: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_classifier, "Pool", LosingPool)
    refused = on_ray(*album, "--batch-size", "-1")
    assert isinstance(refused.exception, InvalidOptionError)
    assert "batch_size is -1" in str(refused.exception)


def test_cluster_options_without_a_cluster_are_refused(album: list[str]) -> None:
    refused = classified(*album, "--actors", "2")
    assert isinstance(refused.exception, InvalidOptionError)
    assert "--engine ray" in str(refused.exception)


def test_ray_chooses_the_gpu_of_a_worker() -> None:
    assert is_gpu("cuda")
    assert is_gpu("cuda:0")
    assert not is_gpu("cpu")
    with pytest.raises(InvalidOptionError, match=r"'cuda:1' is not supported.*one GPU to each worker"):
        is_gpu("cuda:1")
