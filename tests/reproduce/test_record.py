"""A record binds what it says: any change is noticed, and its sample is computed again anywhere."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.evaluate.resolve import is_ordered, make_methods
from poise.evaluate.storage.parts import read_parts
from poise.methods import get as get_method
from poise.report.published import paper
from poise.report.published.peers import PEER_LAYOUTS, PEER_ROWS
from poise.report.tables.block import LAYOUTS
from poise.reproduce import plans
from poise.reproduce import record as records
from poise.reproduce.answers import Answers, answers_in, canonical, pixel_leaves
from poise.reproduce.comparison import Compared, listed
from poise.reproduce.merkle import prove, proven, root
from poise.reproduce.record import MAX_BYTES, InvalidRecordError, problem_of, sealed
from poise.reproduce.verify import Here, Verification, summary, verify
from tests.evaluate.attempt import make_images

ROOT = Path(__file__).parents[2]


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a JSON tree, empty lists and tables too."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    yield from (found for key, part in parts for found in leaves(part, (*place, key)))
    if not isinstance(value, dict | list) or not value:
        yield place


def changed(record: dict[str, Any], place: tuple[Any, ...]) -> dict[str, Any]:
    """The record with another value at one place."""
    other = copy.deepcopy(record)
    *path, last = place
    target: Any = other
    for key in path:
        target = target[key]
    value = target[last]
    target[last] = (
        not value
        if isinstance(value, bool)
        else f"{value}x"
        if isinstance(value, str)
        else (value or 0) + 1
        if isinstance(value, int | float | None)
        else {"x": 1}
        if isinstance(value, dict)
        else [1]
    )
    return other


def test_it_is_small_and_in_its_canonical_form(table):
    content = table.done.file.read_bytes()
    assert len(content) < MAX_BYTES
    assert content == canonical(table.done.record) + b"\n"
    assert records.read(table.done.file) == table.done.record


def test_it_has_what_is_needed_to_repeat_the_run(table):
    record = table.done.record
    (run,) = record["runs"].values()
    assert record["weights_sha256"]
    assert run["model_fingerprint"]
    assert (run["config"]["seeds"], run["config"]["dtype"], run["commit"]) == ([1, 2], "float32", "0")
    assert run["versions"]["torch"]
    entry = run["datasets"]["made"]
    assert (entry["images"], entry["answers"], entry["classes"]) == (40, 80, 4)
    metrics = run["results"]["made"]["kld+cats"]
    assert {"accuracy", "ece", "ece_floor"} <= metrics.keys()
    value, low, high, deviation = metrics["accuracy"]
    assert low <= value <= high
    assert deviation is not None


def trees(table: Any) -> dict[tuple[str, str], list[Answers]]:
    return {("made", "made"): answers_in(read_parts(table.root / "runs" / "made"))["made"]}


def test_every_change_is_noticed(table):
    record = table.done.record
    record = {**record, "sample": records.sampled(record, trees(table), 4)}
    record = sealed(record)
    assert problem_of(record) == ""
    places = list(leaves(record))
    assert len(places) > 200
    for place in places:
        other = changed(record, place)
        assert problem_of(other), place
        if place != ("sha256",):
            assert problem_of(sealed(other)), place  # whoever makes the hash anew does not fit the sample


@pytest.mark.parametrize("part", ["format", "runs", "sample", "sha256", "comparison"])
def test_a_missing_part_is_noticed(table, part):
    other = {key: value for key, value in table.done.record.items() if key != part}
    assert problem_of(other)
    assert problem_of(sealed(other)) or part == "sha256"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "poise-record/1"}', "x" * 300_000, "[" * 5000])
def test_what_is_no_record_is_one_clear_error(tmp_path, text):
    file = tmp_path / "record.json"
    file.write_text(text)
    with pytest.raises(InvalidRecordError, match="can't be used"):
        records.read(file)


def test_a_sample_is_verified(table):
    here = Here(str(table.data), device="cpu")
    found = verify(table.done.record, here, sample=12, runs=table.root / "runs")
    assert found.verified, found.problems
    assert found.rows_compared
    assert (found.images, found.answers) == (12, 24)
    assert found.largest <= 0.002
    assert "verified: 24 of 24 answers" in summary(found)
    alone = verify(table.done.record, here, sample=10)
    assert alone.verified
    assert not alone.rows_compared


def test_a_forged_record_is_not_verified(table):
    """Better numbers, and answers to fit them, with all hashes, proofs and the sample made anew."""
    folder = table.root / "runs" / "made"
    answers = answers_in(read_parts(folder))
    forged = [
        dataclasses.replace(each, by_method=tuple((name, each.label, 0.99) for name, *_ in each.by_method))
        for each in answers["made"]
    ]
    content = {key: value for key, value in copy.deepcopy(table.done.record).items() if key not in ("sample", "sha256")}
    facts = content["runs"]["made"]
    facts["results"]["made"]["kld+cats"]["accuracy"] = [1.0, 1.0, 1.0, 0.0]
    facts["results_sha256"] = records.checksum(canonical(facts["results"]))
    facts["datasets"]["made"]["outputs_root"] = root([each.leaf() for each in forged])
    facts["outputs_sha256"] = records.checksum(canonical({"made": facts["datasets"]["made"]["outputs_root"]}))
    record = sealed({**content, "sample": records.sampled(content, {("made", "made"): forged}, 20)})
    assert problem_of(record) == ""  # it is consistent
    found = verify(record, Here(str(table.data), device="cpu"), sample=20)
    assert not found.verified
    assert found.same < found.answers / 2
    rows = verify(record, Here(str(table.data), device="cpu"), sample=4, runs=table.root / "runs")
    assert any("outputs_root" in problem for problem in rows.problems)
    assert any("accuracy" in problem for problem in rows.problems)


def test_other_images_are_noticed(table, tmp_path):
    from PIL import Image

    data = table.copy(tmp_path)
    for file in (data / "made" / "images").glob("*.png"):
        Image.open(file).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(file)
    found = verify(table.done.record, Here(str(data), device="cpu"), sample=4)
    assert not found.verified
    assert "other pixels here" in found.problems[0]


def test_other_class_names_are_noticed(table, tmp_path):
    from tests.reproduce import made

    data = table.copy(tmp_path)
    made.save_split(data, table.labels[::-1])
    found = verify(table.done.record, Here(str(data), device="cpu"), sample=4)
    assert not found.verified
    assert "images_hash" in found.problems[0]


def test_it_is_verified_on_another_instruction_set_and_number_of_threads(table):
    """A process that computes as an older CPU does, with two threads, verifies what this one recorded."""
    code = (
        "import sys; from pathlib import Path; import tests.reproduce.made as made; from poise.data import catalog;"
        "catalog.register(made.row()); from poise.reproduce.record import read;"
        "from poise.reproduce.verify import Here, verify, summary;"
        "found = verify(read(sys.argv[1]), Here(sys.argv[2], device='cpu'), sample=12);"
        "print(summary(found)); sys.exit(not found.verified)"
    )
    changed = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "2"}
    changed |= {"POISE_THREADS": "2", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, str(table.done.file), str(table.data)]
    done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verified: " in done.stdout


def test_agreement_is_a_share_of_the_answers():
    assert Verification("x", answers=100, same=99).verified
    assert not Verification("x", answers=100, same=98).verified
    assert not Verification("x").verified
    assert not Verification("x", answers=1, same=1, problems=["other pixels"]).verified


def test_proofs_of_a_tree():
    numbers = np.random.default_rng(0)
    for count in (1, 2, 3, 5, 8, 13):
        entries = [bytes([at]) for at in range(count)]
        top = root(entries)
        for _ in range(5):
            chosen = sorted(numbers.choice(count, numbers.integers(1, count + 1), replace=False).tolist())
            proof, known = prove(entries, chosen), {at: entries[at] for at in chosen}
            assert proven(top, count, known, proof)
            assert not proven(top, count, known | {chosen[0]: b"other"}, proof)
            assert not proven(top, count, known, [*proof, "00000"])
            assert not proven(top, count + 1, known, proof)
    assert not proven(root([b"a"]), 1, {}, [])


def test_the_root_of_pixels_does_not_depend_on_seeds_and_order():
    one, two = (Answers(seed, "a", 0, "k", ()) for seed in (1, 2))
    assert pixel_leaves([one, two]) == pixel_leaves([two]) == [b"a\0k"]


def printed(table: str) -> list[Compared]:
    """A verdict on each number that a table prints, with the longest reason."""
    rows = PEER_ROWS if table in PEER_LAYOUTS else paper.ROWS
    reason = "spread of published re-runs, and the 95 % interval of 2000 images of 19850"
    return [
        Compared(row.method, row.init, name, row.metric, 12.3456, 1, 1, 12.34, 12.34, "not comparable", reason, "x")
        for row in paper.matching(rows, table=table)
        for name in (*row.values, "average")
    ]


@pytest.mark.parametrize("table", sorted(LAYOUTS))
def test_the_record_of_each_published_table_is_small(table):
    """All datasets, methods and seeds of the table: the sample is cut until the record fits."""
    trees, runs, methods = {}, {}, {}
    plan = plans.plan(table, {})
    score = {name: [0.12345, 0.12345, 0.12345, 0.01234] for name in records.METRICS}
    for config in plan.runs:
        for name in config.datasets:
            by_method = tuple((method, 100, 0.123) for method in sorted(config.methods))
            trees[config.run_id, name] = [
                Answers(seed, f"folder_of_a_class/image_{image:05d}.jpg", 1, f"{image:032x}", by_method)
                for seed in config.seeds
                for image in range(100)
            ]
        methods = {name: get_method(name).settings() for name in config.methods}
        facts = {**dict.fromkeys(("classes_hash", "images_hash"), "x" * 64), **dict.fromkeys(("a", "b"), "x" * 40)}
        facts |= {"answers": 300, "template": "a photo of a {}.", "more": "x" * 60}
        runs[config.run_id] = {
            "ordered": is_ordered(config, make_methods(config)),
            "config": json.loads(json.dumps(config.hashed())),
            "methods": methods,
            "versions": dict.fromkeys(map(str, range(9)), "x" * 20),
            "datasets": dict.fromkeys(config.datasets, facts),
            "results": dict.fromkeys(config.datasets, dict.fromkeys(config.methods, score)),
        }
    content = {"name": table, "runs": runs, "comparison": listed(printed(table))}
    record = records.fitted(content, trees)
    assert len(canonical(record)) < MAX_BYTES
    assert sum(len(entry["answers"]) for entry in record["sample"]["entries"]) >= 20


def test_what_does_not_fit_is_an_error():
    with pytest.raises(InvalidRecordError, match="more than 100000 bytes"):
        records.fitted({"name": "x" * MAX_BYTES, "runs": {}}, {})


def key(folder: Path) -> Path:
    file = folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "someone", "-f", str(file)], check=True)
    return file


def test_signatures(table, tmp_path):
    record = tmp_path / "made.json"
    record.write_bytes(table.done.file.read_bytes())
    private = key(tmp_path)
    runner = CliRunner()
    signed = runner.invoke(app, ["reproduce", "sign", str(record), "--key", str(private)])
    assert signed.exit_code == 0, signed.output
    shown = runner.invoke(app, ["reproduce", "check", str(record)])
    assert "signed by Good" in shown.output
    signers = tmp_path / "signers"
    signers.write_text(f"someone@example.org {private.with_suffix('.pub').read_text()}")
    shown = runner.invoke(app, ["reproduce", "check", str(record), "--signers", str(signers)])
    assert "signed by someone@example.org" in shown.output, shown.output
    other = tmp_path / "other.json"
    records.write(sealed({**table.done.record, "name": "better"}), other)
    with pytest.raises(InvalidRecordError):
        records.read(other)
    from poise.reproduce.signature import check

    with pytest.raises(InvalidRecordError, match="not of this record"):
        check(sealed({**table.done.record, "name": "better"}), record.with_name("made.json.sig"), signers)
    signers.write_text("")
    with pytest.raises(InvalidRecordError):
        check(table.done.record, record.with_name("made.json.sig"), signers)


def test_the_command_from_end_to_end(tmp_path, monkeypatch):
    """A configuration of one's own, from images to a record, an attestation and its verification."""
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", classes=2, each=2)
    (tmp_path / "own.toml").write_text(
        'model = "tiny"\ndatasets = ["folder:images"]\nmethods = ["kld+cats", "tda"]\nseeds = [1]\nviews = 2\n'
    )  # answers of tda depend on the images before, so that the sample is the beginning of the stream
    runner = CliRunner()
    done = runner.invoke(app, ["reproduce", "run", "own.toml", "--device", "cpu", "--quick"])
    assert done.exit_code == 0, done.output
    assert "about " in done.output
    file = done.output.strip().splitlines()[-1]
    asked = ["reproduce", "verify", file, "--records", "runs", "--device", "cpu", "--out", "seen.json"]
    shown = runner.invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert json.loads(Path("seen.json").read_text())["record"] == records.read(file)["sha256"]
    for image in Path("images").rglob("*.png"):
        image.write_bytes((tmp_path / "images" / "class0" / "0.png").read_bytes())
    assert runner.invoke(app, asked).exit_code == 3
