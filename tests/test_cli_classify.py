"""`poise classify`, `poise list`, `poise --version`: rows, formats and exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import poise
from poise import methods
from poise.cli.app import app, main
from poise.errors import InvalidLabelsError

TINY = ["--model", "tiny", "--views", "4", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, seed in (("a.png", 0), ("b.jpg", 1)):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(app, ["classify", *arguments, *TINY])


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a refusal, which must end with exit code 2."""
    monkeypatch.setattr("sys.argv", ["poise", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_json_rows(folder: Path) -> None:
    done = run(str(folder), "--labels", "cat,dog", "--format", "json", "--method", "zero-shot,kld+cats", "--details")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [(Path(row["source"]).name, row["method"]) for row in rows] == [
        ("a.png", "zero-shot"),
        ("a.png", "kld+cats"),
        ("b.jpg", "zero-shot"),
        ("b.jpg", "kld+cats"),
    ]
    assert sum(rows[1]["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    assert len(rows[1]["details"]["view_confidences"]) == 4


def test_table_and_csv(folder: Path) -> None:
    table = run(str(folder / "*.png"), "--labels", "cat,dog")
    assert table.exit_code == 0
    assert "a.png" in table.stdout
    assert "confidence" in table.stdout
    text = run(str(folder), "--labels", "=cat,dog", "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [Path(row["source"]).name for row in rows] == ["a.png", "b.jpg"]
    assert all(row["label"] in {"'=cat", "dog"} for row in rows)
    assert 0 <= float(rows[0]["confidence"]) <= 1


def test_csv_cells_that_a_spreadsheet_would_run_are_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula, by any of its first characters, in a label and in a file's name."""
    monkeypatch.chdir(folder)
    (folder / "a.png").rename('=a,"b.png')
    for first in "=+-@":
        text = run('=a,"b.png', "--labels", f"{first}cat,{first}dog", "--format", "csv").stdout
        (row,) = csv.DictReader(io.StringIO(text))
        assert row["label"] in {f"'{first}cat", f"'{first}dog"}
        assert row["source"] == "'=a,\"b.png"
    bad = run("=none.png", "--labels", "a,b", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(bad.stdout))
    assert (row["source"], row["method"]) == ("'=none.png", "")
    assert "does not exist" in row["error.message"]


def test_labels_and_paths_are_text_and_not_markup(folder: Path) -> None:
    (folder / "a.png").rename(folder / "[red]a.png")
    done = run(str(folder), "--labels", "[/red]cat,dog\x1b[31m", "--method", "zero-shot")
    assert done.exit_code == 0, done.output
    assert "[red]a.png" in done.stdout
    assert "[/red]cat" in done.stdout
    assert "\x1b[31m" not in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_a_name_that_is_not_utf8_costs_no_row(folder: Path, output: str) -> None:
    (folder / "a.png").rename(os.fsdecode(os.fsencode(str(folder)) + b"/\xff.png"))
    done = run(str(folder), "--labels", "cat,dog", "--format", output, "--method", "zero-shot")
    assert done.exit_code == 0, done.output
    assert "b.jpg" in done.stdout


def test_init_names_where_tuning_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(folder / "a.png")
    message = refused(monkeypatch, capsys, "classify", image, "--labels", "a,b", "--init", "none.safetensors", *TINY)
    assert "none.safetensors" in message
    common = ["classify", image, "--labels", "a,b", "--init", "x", "--template", "{} here", *TINY]
    assert "brings its own template" in refused(monkeypatch, capsys, *common)


def test_labels_from_a_file(folder: Path) -> None:
    (folder / "labels.txt").write_text("cat\n\n  great white shark  \n", encoding="utf-8")
    rows = json.loads(
        run(str(folder / "a.png"), "--labels-file", str(folder / "labels.txt"), "--format", "json").stdout
    )
    assert set(rows[0]["probabilities"]) == {"cat", "great white shark"}


def test_an_interrupt_keeps_what_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from poise.inference.classifier import Classifier

    each = Classifier.each

    def stopped(self, *arguments, **options):
        yield next(each(self, *arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(Classifier, "each", stopped)
    done = run(str(folder), "--labels", "cat,dog", "--format", "json")
    assert done.exit_code == 130
    assert [Path(row["source"]).name for row in json.loads(done.stdout)] == ["a.png"]
    assert "stopped after 1 of 2 images" in done.stderr


def test_sigterm_keeps_what_is_done(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from poise.inference.classifier import Classifier

    each = Classifier.each

    def stopped(self, *arguments, **options):
        yield next(each(self, *arguments, **options))
        os.kill(os.getpid(), signal.SIGTERM)
        yield from each(self, *arguments, **options)

    monkeypatch.setattr(Classifier, "each", stopped)
    done = run(str(folder), "--labels", "cat,dog", "--format", "json")
    assert done.exit_code == 128 + signal.SIGTERM
    assert [Path(row["source"]).name for row in json.loads(done.stdout)] == ["a.png"]


def test_exit_codes_for_bad_rows(folder: Path) -> None:
    (folder / "c.jpg").write_bytes(b"")
    some = run(str(folder), "--labels", "cat,dog", "--format", "json")
    assert some.exit_code == 3
    rows = json.loads(some.stdout)
    assert [row["error"] is not None for row in rows] == [False, False, True]
    assert len({tuple(row) for row in rows}) == 1  # every row has the same keys
    none = run(str(folder / "c.jpg"), "--labels", "cat,dog")
    assert none.exit_code == 4
    assert none.stdout.splitlines()[0].split() == ["image", "method", "label"]  # no columns that nothing fills


def test_refusals_have_one_clear_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image = str(folder / "a.png")
    assert "No labels were given. Give either --labels" in refused(monkeypatch, capsys, "classify", image, *TINY)
    both = ["--labels", "a,b", "--labels-file", image]
    assert "Both --labels and --labels-file" in refused(monkeypatch, capsys, "classify", image, *both, *TINY)
    assert "Did you mean 'kld'" in refused(
        monkeypatch, capsys, "classify", image, "--labels", "a,b", "--method", "klt", *TINY
    )
    assert "No images found in" in refused(
        monkeypatch, capsys, "classify", str(folder / "*.webp"), "--labels", "a,b", *TINY
    )
    (folder / "later").mkdir()
    message = refused(monkeypatch, capsys, "classify", str(folder / "latr"), "--labels", "a,b", *TINY)
    assert f"latr' does not exist. Did you mean '{folder / 'later'}'?" in " ".join(message.split())
    message = refused(monkeypatch, capsys, "classify", image, "--labels-file", str(folder / "none.txt"), *TINY)
    assert "none.txt" in message
    assert "Traceback" not in message


@pytest.mark.parametrize("command", [["serve"], ["demo"], ["export", "onnx", "--out", "x.onnx"]], ids=" ".join)
def test_views_are_a_number_where_there_are_no_images_to_choose_on(command: list[str]) -> None:
    refusal = CliRunner().invoke(app, [*command, "--views", "auto"])
    assert refusal.exit_code == 2
    assert "'auto' is chosen on" in refusal.output


def test_lists_and_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == f"poise {poise.__version__}"
    done = CliRunner().invoke(app, ["list", "methods"], env={"POISE_VERSION": "1"})  # not an option, unlike others
    assert "kld+cats" in done.stdout
    assert "lambda_q=4.0" in CliRunner().invoke(app, ["list", "settings"]).stdout
    assert "pocket" in CliRunner().invoke(app, ["list", "models"]).stdout
    assert "caltech101" in CliRunner().invoke(app, ["list", "datasets"]).stdout
    found = CliRunner().invoke(app, ["list", "models", "--filter", "vit-b-16/OPENAI"]).stdout.splitlines()
    assert [line.split()[0] for line in found[2:]] == ["ViT-B-16/openai"]
    assert CliRunner().invoke(app, ["list", "models", "--filter", "no such thing"]).exit_code != 0


def test_images_of_one_name_are_told_apart(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "a.png").write_bytes((folder / "a.png").read_bytes())
    done = run(str(folder), "--labels", "cat,dog", "--method", "zero-shot")
    shown = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert sorted(shown) == sorted([str(folder / "a.png"), "b.jpg", str(folder / "more" / "a.png")])


def test_all_methods(folder: Path) -> None:
    done = run(str(folder / "a.png"), "--labels", "cat,dog", "--method", "paper", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["method"] for row in rows] == methods.names()


def test_a_single_label_is_refused(folder: Path) -> None:
    done = CliRunner().invoke(app, ["classify", str(folder / "a.png"), "--labels", "cat", "--model", "no such model"])
    assert isinstance(done.exception, InvalidLabelsError)  # exit code 2
    assert "at least two labels" in str(done.exception)


def test_groups_and_posthoc_steps(folder: Path) -> None:
    chosen = ["--labels", "cat,dog", "--method", "peers,tpt|cots", "--format", "csv"]
    done = CliRunner().invoke(app, ["classify", str(folder / "a.png"), *chosen, *TINY, "--views", "6"])
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["method"] for row in rows] == [*methods.names("peers"), "tpt | cots"]
    assert all(row["fallback"] == "False" for row in rows)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_in_one_line() -> None:
    command = [sys.executable, "-c", "from poise.cli import main; main()", "list", "methods"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 5
    assert done.stderr == "poise: Can't use the output: No space left on device.\n"


def test_zero_shot_takes_a_template_of_the_name_alone(folder: Path) -> None:
    done = run(str(folder / "a.png"), "--labels", "cat,dog", "--method", "zero-shot", "--template", "{}")
    assert done.exit_code == 0, done.output
    words = run(str(folder / "a.png"), "--labels", "a cat,a dog", "--method", "zero-shot", "--template", "{}")
    whole = run(str(folder / "a.png"), "--labels", "cat,dog", "--method", "zero-shot", "--template", "a {}")
    assert words.stdout.split()[-1] == whole.stdout.split()[-1]  # the same texts, so the same probability


def test_a_long_label_is_refused_or_cut(folder: Path) -> None:
    labels = f"cat,{'shark ' * 90}"
    assert "Too long under the template" in str(run(str(folder / "a.png"), "--labels", labels).exception)
    with pytest.warns(UserWarning, match="Cut to the model's 77 tokens"):
        done = run(str(folder / "a.png"), "--labels", labels, "--on-long-label", "truncate")
    assert done.exit_code == 0, done.output


def test_empty_labels_are_refused(folder: Path) -> None:
    assert "The list of labels is empty. Give at least two labels." in str(run(str(folder), "--labels", "").exception)


def test_no_folder_for_temporary_files_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("poise.cli.app.app", command)
    with pytest.raises(SystemExit, match="5"):
        main()
    assert "Make /tmp writable, or name a folder in TMPDIR." in capsys.readouterr().err
