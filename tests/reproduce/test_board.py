"""The board: its records are whole and verify, its page is that of the records, and exports are what the hub reads."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import parse_eval_result_entries
from typer.testing import CliRunner

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.cli.app import app
from poise.errors import InvalidDatasetError
from poise.report.published import paper
from poise.reproduce import board, record
from poise.reproduce.answers import canonical
from poise.reproduce.board import Board, Entry
from poise.reproduce.comparison import Compared, compare
from poise.reproduce.comparison import table as comparison_table
from poise.reproduce.exports import hub_results, model_card
from poise.reproduce.record import InvalidRecordError
from poise.reproduce.verify import Here, Verification, verify
from tests.reproduce import made
from tools.board import BOARD, PAGE, package_images

AGAIN = "python tools/board.py --data DATA"


def of_these_weights(name: str) -> dict:
    """A record of the board, which must be of the weights in the package."""
    content = record.read(BOARD / f"{name}.json")
    (run,) = content["runs"].values()
    assert run["model_fingerprint"] == fingerprint(load_model("pocket", device="cpu")), f"make it again: {AGAIN}"
    return content


def test_the_page_is_that_of_the_records():
    assert PAGE.read_text() == board.page(board.load(BOARD)), f"make it again: {AGAIN}"


def test_the_record_of_package_images_verifies(tmp_path, monkeypatch):
    content = of_these_weights("pocket-package")
    package_images(tmp_path)
    monkeypatch.chdir(tmp_path)
    found = verify(content, Here(device="cpu"), sample=3)
    assert found.verified, found.problems
    assert found.images == 3


@pytest.mark.data
def test_the_record_of_photographs_verifies(data_root):
    found = verify(of_these_weights("pocket-photos"), Here(str(data_root), device="cpu"), sample=3)
    assert found.verified, found.problems


def test_statuses(table, tmp_path):
    """Published, then reproduced by a record, then verified by an attestation."""
    rows = made.published(table.truth["accuracy"], table.truth["ece"])
    shown = Board((Entry("made", table.done.record),), rows).tables()[-1]
    statuses = {line.cells[0].text: line.cells[1].text for line in shown.lines}
    assert statuses["zero-shot"] == "reproduced"
    shutil.copy(table.done.file, tmp_path / "made.json")
    (entry,) = board.load(tmp_path).entries
    some = seen_by(table, images=entry.sample - 1)
    (tmp_path / "made.seen.json").write_bytes(canonical(some))
    assert board.load(tmp_path).entries[0].status == "recorded"  # not all of the sample was computed again
    seen = seen_by(table, images=entry.sample)
    (tmp_path / "made.seen.json").write_bytes(canonical(seen))
    (entry,) = board.load(tmp_path).entries
    assert entry.status == "verified"
    assert {line.cells[1].text for line in Board((entry,), rows).tables()[-1].lines} >= {"verified"}
    assert {line.cells[1].text for line in Board((), rows).tables()[-1].lines} == {"published"}
    (tmp_path / "made.seen.json").write_bytes(canonical({**seen, "same": 9}))
    with pytest.raises(InvalidRecordError, match="was changed"):
        board.load(tmp_path)
    (tmp_path / "made.seen.json").write_bytes(canonical(Verification("other").attestation()))
    with pytest.raises(InvalidDatasetError, match="a record that is not there"):
        board.load(tmp_path)


def seen_by(table, *, images: int) -> dict:
    """What somebody found who computed some images of the sample again."""
    found = Verification(table.done.record["sha256"], answers=2 * images, same=2 * images, images=images, device="cpu")
    return found.attestation()


def test_signatures_of_records_and_attestations_are_shown_and_checked(table, tmp_path):
    shutil.copy(table.done.file, tmp_path / "made.json")
    (tmp_path / "made.seen.json").write_bytes(canonical(seen_by(table, images=80)))
    private = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(private)], check=True)
    (tmp_path / board.SIGNERS).write_text(f"someone@example.org {private.with_suffix('.pub').read_text()}")
    for name in ("made.json", "made.seen.json"):
        signed = CliRunner().invoke(app, ["reproduce", "sign", str(tmp_path / name), "--key", str(private)])
        assert signed.exit_code == 0, signed.output
        assert "signed by" in CliRunner().invoke(app, ["reproduce", "check", str(tmp_path / name)]).output
    (entry,) = board.load(tmp_path).entries
    assert (entry.signer, entry.seen[0].signer) == ("someone@example.org",) * 2
    assert "signed by someone@example.org" in board.page(board.load(tmp_path))
    shutil.copy(tmp_path / "made.json.sig", tmp_path / "made.seen.json.sig")
    with pytest.raises(InvalidRecordError, match="not of this record"):
        board.load(tmp_path)


def test_the_page_shows_text_as_text(table):
    content = copy.deepcopy(table.done.record)
    content["runs"]["made"]["config"]["model"] = "<script>alert(1)</script>"
    page = board.page(Board((Entry("made", content),)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_folder_without_records_is_an_error(tmp_path):
    with pytest.raises(InvalidDatasetError, match="No records"):
        board.load(tmp_path)
    (tmp_path / "x.json").write_text("[")
    with pytest.raises(InvalidRecordError, match="can't be used"):
        board.load(tmp_path)


def test_exports(table, tmp_path):
    files = hub_results(table.done.record, {"made": "org/made"}, date="2026-11-16", url="https://example.org/made.json")
    import yaml

    entries = parse_eval_result_entries(yaml.safe_load(files["made.yaml"]))
    assert {(entry.dataset_id, entry.task_id) for entry in entries} == {("org/made", "accuracy"), ("org/made", "ece")}
    assert table.done.record["sha256"] in str(entries[0].notes)
    assert hub_results(table.done.record, {}) == {}
    assert "| kld+cats" in model_card(table.done.record, "made")
    asked = ["reproduce", "export", str(table.done.file), "--out", str(tmp_path), "--hub", "made=org/made"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / ".eval_results" / "made.yaml").is_file()
    page = CliRunner().invoke(app, ["reproduce", "board", str(BOARD), "--out", str(tmp_path / "b.html")])
    assert "pocket-package" in Path(page.output.strip()).read_text()


def test_verdicts(table):
    """Zero-shot is what was published; another published number is outside, and of another model neither."""
    cells = {(cell.method, cell.dataset, cell.metric): cell for cell in table.done.compared}
    assert cells["zero-shot", "made", "accuracy"].verdict == "inside"
    assert cells["zero-shot", "average", "ece"].verdict == "inside"
    from poise.report.records.runs import load
    from poise.report.records.scores import scoreboard

    scores = scoreboard(load(table.root / "runs" / "made"), metrics=("accuracy", "ece"))
    (setting,) = scores.records.settings
    other = compare(scores, setting, made.LAYOUT, same_model=False)
    assert {cell.verdict for cell in other} == {"not comparable"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "ROWS", made.published(table.truth["accuracy"] - 5, table.truth["ece"] + 5))
        wrong = compare(scores, setting, made.LAYOUT, same_model=True)
    assert {cell.verdict for cell in wrong if cell.method == "zero-shot"} == {"outside"}
    shown = comparison_table(cells.values(), "made")
    assert "inside" in shown.notes[0]


def test_some_of_the_images(table, tmp_path):
    """A subset has an interval for the accuracy, and no verdict on its ECE."""
    done = table.run(tmp_path, limit=20)
    by_metric: dict[str, list[Compared]] = {}
    for cell in done.compared:
        by_metric.setdefault(cell.metric, []).append(cell)
    assert {cell.verdict for cell in by_metric["ece"]} == {"not comparable"}
    assert all("20 images of 40" in cell.reason for cells in by_metric.values() for cell in cells)
    assert json.loads(done.file.read_bytes())["gate"][1]["judged"] is False
