"""Targets for files that poise writes itself, and for datasets. Importing this module adds them to the table."""

from __future__ import annotations

import functools
import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import torch

from poise.files import checksum
from tools.fuzz.edits import Choices, as_json, edited_bytes, edited_json, edited_tree
from tools.fuzz.targets import _images, _tiny, _written, target


@functools.cache
def _calibration() -> bytes:
    from poise.calibration import Answers, Conditions, assess

    rng = np.random.default_rng(0)
    conditions = Conditions(
        model="tiny",
        fingerprint="f",
        labels=("a", "b", "c"),
        template="{}",
        context="auto",
        init="template",
        init_hash="",
        views=2,
        augmix=False,
        seed=0,
    )
    answers = {"tpt": Answers({"steps": 1, "terms": ("x",)}, rng.dirichlet(np.ones(3), 25), [0.1, 0.2])}
    made = assess(conditions, answers, rng.integers(0, 3, 25), rng.random(25), [f"key {at}" for at in range(25)])
    made.save(path := Path(_scratch()) / "calibration.json")
    return path.read_bytes()


@functools.cache
def _scratch() -> Path:
    from tools.fuzz.targets import _folder

    (_folder() / "scratch").mkdir(exist_ok=True)
    return _folder() / "scratch"


@target("Calibration.load and what a classifier computes from it")
def calibration(choices: Choices, folder: Path) -> None:
    from poise.calibration import Calibration

    stored = Calibration.load(_written(folder, "c.json", edited_json(choices, json.loads(_calibration()))))
    stored.options()
    for part in stored.methods.values():
        part.certificate(0.1)
        part.reliability(5)
        probs = np.full((1, len(stored.conditions.labels)), 1 / len(stored.conditions.labels))
        calibrated = part.calibrator.apply(probs)
        assert np.isfinite(calibrated).all()
        for name in part.scores:
            part.sets(calibrated, 0.9, np.array([0.5]), score=name)


@functools.cache
def _prompt() -> bytes:
    from poise.prompts.files import Facts, StoredPrompt, save

    facts = Facts(kind="coop", model="tiny", template="X X X X {}.")
    save(_scratch() / "p.safetensors", StoredPrompt({"context": torch.zeros(4, 64)}, facts))
    return (_scratch() / "p.safetensors").read_bytes()


@target("prompt files of fit, and their fit to a model")
def prompt_file(choices: Choices, folder: Path) -> None:
    from poise.prompts.files import load

    content = _prompt()
    if choices.number(3):  # the header, and the JSON in it
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        facts = json.loads(header["__metadata__"]["facts"])
        if choices.number(2):
            header["__metadata__"]["facts"] = edited_json(choices, facts).decode("utf-8", "replace")
        text = as_json(edited_tree(choices, header))
        content = len(text).to_bytes(8, "little") + text + content[8 + length :]
    else:
        content = edited_bytes(choices, [content])
    load(_written(folder, "p.safetensors", content)).classes(_tiny(), ["cat", "dog"])


def _learner(depth: int) -> dict[str, torch.Tensor]:
    """Return the tensors of a published MaPLe checkpoint, which has those of a CoOp checkpoint."""
    layers = range(depth)
    prompts = {f"compound_prompts_text.{layer}": torch.zeros(2, 8) for layer in layers}
    weights = {f"compound_prompt_projections.{layer}.weight": torch.zeros(6, 8) for layer in layers}
    biases = {f"compound_prompt_projections.{layer}.bias": torch.zeros(6) for layer in layers}
    shared = {"ctx": torch.zeros(2, 8), "proj.weight": torch.zeros(6, 8), "proj.bias": torch.zeros(6)}
    return {**shared, **prompts, **weights, **biases}


def _checkpoint(content: object, *, packed: bool) -> bytes:
    sink = io.BytesIO()
    torch.save(content, sink, _use_new_zipfile_serialization=packed)
    return sink.getvalue()


@functools.cache
def _published() -> list[bytes]:
    content = {"state_dict": _learner(2), "epoch": 5}
    return [_checkpoint(content, packed=True), _checkpoint(content, packed=False)]  # the older form has no checksums


@target("published prompts (pickles) given to convert")
def published_prompt(choices: Choices, folder: Path) -> None:
    from poise.inits.convert import read_coop, read_maple

    read = choices.one((read_coop, read_maple))
    if choices.number(3) == 2:
        content = edited_bytes(choices, _published())
    else:
        tree = edited_tree(choices, {"state_dict": _learner(choices.number(3)), "epoch": 5})
        content = _checkpoint(tree, packed=False)
    read(_written(folder, "p.pth.tar", content), "tiny")


@functools.cache
def _run() -> Path:
    from PIL import Image

    from poise.evaluate.config import build
    from poise.evaluate.run import run

    for label in ("a", "b"):
        for number in range(2):
            _written(_scratch(), f"images/{label}/{number}.png", b"")
            Image.new("RGB", (20, 20), (number * 99, 7, len(label))).save(
                _scratch() / "images" / label / f"{number}.png"
            )
    run(
        *build(
            {
                "datasets": f"folder:{_scratch()}/images",
                "model": "tiny",
                "methods": "zero-shot,tpt",
                "seeds": "1",
                "views": 2,
                "chunk": 2,
                "tsne": True,
                "device": "cpu",
                "out": str(_scratch() / "runs"),
                "name": "run",
            }
        )
    )
    return _scratch() / "runs" / "run"


def _recorded(folder: Path, file: Path) -> None:
    """Change the checksum of a file in the ledger to what it is now."""
    name = file.relative_to(folder)
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    for line in lines:
        if line.get("unit") == name.with_suffix("").as_posix() or line.get("file") == name.as_posix():
            line["sha256"] = checksum(file.read_bytes())
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@target("folders of runs: run.json, ledger, records and text features, given to the reports")
def run_folder(choices: Choices, folder: Path) -> None:
    from poise.evaluate.storage.run_folder import status
    from poise.report.figures.tsne import text_features
    from poise.report.records.runs import load
    from poise.report.tables.analyses import analysis_tables
    from poise.report.tables.formats import render
    from poise.report.tables.results import result_tables

    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(_run(), copy)
    files = [copy / "run.json", copy / "ledger.jsonl", min(copy.rglob("part-*")), next(copy.glob("features/*"))]
    file = choices.one(files)
    seed = file.read_bytes()
    if file.name == "run.json" and choices.number(4):
        file.write_bytes(as_json(edited_tree(choices, json.loads(seed))))
    elif file.name == "ledger.jsonl" and choices.number(4):
        lines = edited_tree(choices, [json.loads(line) for line in seed.splitlines()])
        file.write_bytes(b"\n".join(as_json(line) for line in (lines if isinstance(lines, list) else [lines])))
    else:
        forge = choices.number(2)
        file.write_bytes(edited_bytes(choices, [seed]))
        if forge and file.suffix in (".parquet", ".npz"):
            _recorded(copy, file)
    status(copy)
    records = load(copy)
    list(text_features(records))
    render(result_tables(records), "csv", colour=False)
    analysis_tables(records)


@target("CSV files of labelled images given to calibrate")
def labelled_csv(choices: Choices, folder: Path) -> None:
    from poise.cli.input.labelled_images import read_labelled
    from poise.prompts.labels import check_labels

    seeds = [b"path,label\na.png,cat\nb.png,dog\n", b'label,path\n"a, b","c ""d"".png"\n']
    _, truth, names = read_labelled(_written(folder, "images.csv", edited_bytes(choices, seeds)))
    assert len(truth) >= len(check_labels(names)) > 0


@functools.cache
def _shard() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as file:
        for name, content in (("0.png", _images()[3]), ("0.cls", b"1"), ("1.png", _images()[4]), ("1.cls", b"0")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return sink.getvalue()


@target("datasets: CoOp's split files and webdataset shards")
def dataset(choices: Choices, folder: Path) -> None:
    from poise.data import open_dataset
    from poise.data.splits import class_names, read_split_file

    if choices.number(2):
        split = {name: [["a/0.jpg", 0, "cat"], ["b/1.jpg", 1, "dog"]] for name in ("train", "val", "test")}
        path = _written(folder, "split.json", edited_json(choices, split))
        class_names(path, read_split_file(path))
        return
    _written(folder, "shards/classnames.txt", b"cat\ndog\n")
    path = _written(folder, "shards/0.tar", edited_bytes(choices, [_shard()]))
    for item in open_dataset(f"wds:{path}").items[:5]:
        item.source()
