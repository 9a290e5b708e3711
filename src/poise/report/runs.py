"""Reads a folder of runs: per-image rows and headers, sorted into comparable groups."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.storage.run_folder import read_header
from poise.metrics import Sample
from poise.metrics.sample import in_top
from poise.report.looks import look
from poise.storage import checksum

# What may differ between two runs that are still the same experiment: which part of it was run, and how fast.
NOT_A_SETTING = frozenset({"datasets", "methods", "seeds", "limit", "batch_size", "chunk", "device", "model"})
_SCALARS = (
    "label", "prediction", "confidence", "entropy", "correct", "init_prediction", "init_confidence",
    "init_entropy", "target_prediction", "atfd", "init_atfd", "fallback",
)  # fmt: skip
_NEEDED = ("run", "model", "dataset", "method", "seed", "id", "error", *_SCALARS)


@dataclass(frozen=True, order=True)
class Setting:
    """What is held fixed when methods are compared: the model, and every choice that changes numbers."""

    model: str
    choices: str = ""  # canonical JSON of the run's configuration without NOT_A_SETTING
    init: str = "template"  # the kind of prompt that tuning starts from

    def get(self, name: str, default: Any = None) -> Any:
        """One of the choices."""
        return (json.loads(self.choices) if self.choices else {}).get(name, default)

    @property
    def framework(self) -> str:
        """How images relate to each other, such as ``tpt`` or ``dynaprompt``."""
        return str(self.get("framework", "tpt"))


@dataclass(frozen=True)
class SeedRows:
    """The images of one seed, in the order of their ids."""

    ids: tuple[str, ...]
    columns: dict[str, np.ndarray]  # [N] each
    probs: np.ndarray | None  # [N, C]
    top_ids: np.ndarray | None  # [N, K]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, keep: np.ndarray) -> SeedRows:
        """The rows at the positions ``keep``."""
        return SeedRows(
            tuple(self.ids[at] for at in keep),
            {name: column[keep] for name, column in self.columns.items()},
            None if self.probs is None else self.probs[keep],
            None if self.top_ids is None else self.top_ids[keep],
        )

    def sample(self) -> Sample:
        """What the metrics read. Confidences are the float64 ones of the record, not the float32 probabilities'."""
        labels, probs = self["label"], None if self.probs is None else self.probs.astype(np.float64)
        top5 = None
        if probs is not None:
            top5 = in_top(probs, labels)
        elif self.top_ids is not None and self.top_ids.shape[1] >= 5:
            top5 = (self.top_ids[:, :5] == labels[:, None]).any(1)
        return Sample(self["confidence"], self["correct"].astype(bool), top5, probs, labels)


@dataclass(frozen=True)
class Group:
    """One method on one dataset under one setting: the same images for every seed."""

    setting: Setting
    dataset: str
    method: str
    seeds: dict[int, SeedRows]
    errors: int = 0  # rows that hold an error instead of an answer
    uneven: int = 0  # images left out because some seed has no answer for them

    @property
    def n(self) -> int:
        """The number of images."""
        return len(next(iter(self.seeds.values())))

    @cached_property
    def pooled(self) -> dict[str, np.ndarray]:
        """All seeds' columns end to end."""
        return {name: np.concatenate([rows[name] for rows in self.seeds.values()]) for name in _SCALARS}

    def samples(self) -> list[Sample]:
        """One sample per seed."""
        return [rows.sample() for rows in self.seeds.values()]


@dataclass(frozen=True)
class Records:
    """Everything that a folder of runs says."""

    groups: tuple[Group, ...]
    headers: dict[str, dict[str, Any]]  # run -> run.json
    folders: dict[str, Path]  # run -> its folder

    @property
    def settings(self) -> list[Setting]:
        """All settings, in order."""
        return list(dict.fromkeys(group.setting for group in self.groups))

    @property
    def datasets(self) -> list[str]:
        """All datasets, in the order found."""
        return list(dict.fromkeys(group.dataset for group in self.groups))

    @property
    def methods(self) -> list[str]:
        """All methods, in the order of their rows."""
        return sorted({group.method for group in self.groups}, key=lambda name: look(name).order)

    def method_settings(self, method: str) -> dict[str, Any]:
        """The stored settings of a method, from the first run that has it; empty where no header tells."""
        return next(
            (head["methods"][method] for head in self.headers.values() if method in head.get("methods", {})), {}
        )

    def label(self, setting: Setting) -> str:
        """The model, and the choices in which it differs from the other settings found."""
        others = [each for each in self.settings if each != setting]
        own = json.loads(setting.choices) if setting.choices else {}
        told = [f"{key}={own[key]}" for key in sorted(own) if any(each.get(key) != own[key] for each in others)]
        return ", ".join([setting.model, *told])

    def classes(self, dataset: str) -> tuple[str, ...]:
        """The class names of a dataset in label order; empty where no header tells."""
        for header in self.headers.values():
            found = header.get("datasets", {}).get(dataset, {}).get("classes")
            if found:
                return tuple(found)
        return ()

    def unfinished(self) -> list[str]:
        """The runs whose folders hold fewer images than their headers announce."""
        found = []
        for run, folder in self.folders.items():
            header = self.headers[run]
            seeds = len(header.get("config", {}).get("seeds", ()))
            announced = seeds * sum(int(each.get("images", 0)) for each in header.get("datasets", {}).values())
            ledger = Ledger(folder / "ledger.jsonl")
            done = (
                sum(int(line["images"]) for line in ledger.finished().values()) if ledger.path.is_file() else announced
            )
            if done < announced:
                found.append(f"The run '{run}' is not finished: {done} of {announced} images (times seeds).")
        return found

    def chosen(
        self, *, setting: Setting | None = None, dataset: str | None = None, method: str | None = None
    ) -> Iterator[Group]:
        """The groups that are as asked for."""
        for group in self.groups:
            same = ((setting, group.setting), (dataset, group.dataset), (method, group.method))
            if all(asked is None or asked == own for asked, own in same):
                yield group


def load(path: str | Path | Records) -> Records:
    """All finished records below ``path``: a run's folder or a folder of runs."""
    if isinstance(path, Records):
        return path
    root = Path(path)
    found = sorted(root.rglob("run.json")) if root.is_dir() else []
    if not found:
        what = f"No run.json is below '{path}'." if root.is_dir() else f"There is no folder '{path}'."
        raise InvalidDatasetError(what, hint="Give the folder that `poise bench run --out` wrote.")
    headers: dict[str, dict[str, Any]] = {}
    folders: dict[str, Path] = {}
    tables: list[pa.Table] = []
    for file in found:
        header = read_header(file.parent)
        run = str(header.get("run", file.parent.name))
        if run in headers:
            raise InvalidOptionError(f"Two runs are called '{run}': '{folders[run]}' and '{file.parent}'.",
                                hint="Report on one of their folders at a time, or rename one.")  # fmt: skip
        headers[run], folders[run] = header, file.parent
        tables += [_with_setting(table, header) for table in _parts(file.parent)]
    if not any(len(table) for table in tables):
        raise InvalidDatasetError(
            f"The runs below '{path}' have no rows yet.", hint="Let `poise bench run` finish a chunk."
        )
    return Records(_groups(pa.concat_tables(tables, promote_options="permissive")), headers, folders)


def _parts(folder: Path) -> Iterator[pa.Table]:
    """A run's files of records: those that its ledger lists, if they are as they were written."""
    ledger = Ledger(folder / "ledger.jsonl")
    known = {folder / f"{unit}.parquet": line["sha256"] for unit, line in ledger.finished().items()}
    for part in sorted(known) if ledger.path.is_file() else sorted(folder.rglob("*.parquet")):
        try:
            content = part.read_bytes()
            if checksum(content) != known.get(part, checksum(content)):
                raise OSError("it is not the file that was written")
            yield pq.read_table(pa.BufferReader(content))
        except (OSError, pa.ArrowException) as problem:
            raise InvalidDatasetError(
                f"The records '{part}' are damaged: {problem}.",
                hint="Run the same `poise bench run` again (`poise bench resume-info` shows it): it repairs the run.",
            ) from None


def of_table(table: pa.Table, header: dict[str, Any] | None = None) -> Records:
    """Records from rows in memory."""
    header = header or {}
    return Records(_groups(_with_setting(table, header)), {str(header.get("run", "run")): header}, {})


def _with_setting(table: pa.Table, header: dict[str, Any]) -> pa.Table:
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise InvalidDatasetError(
            f"The records have no column {', '.join(missing)}.", hint="They are of another version of poise."
        )
    setting = setting_of(header)
    for name, value in (("choices", setting.choices), ("init", setting.init)):
        table = table.append_column(name, pa.array([value] * len(table), pa.string()))
    return table


def setting_of(header: dict[str, Any]) -> Setting:
    """The setting of a run, from its header."""
    config = header.get("config", {})
    own = {key: value for key, value in config.items() if key not in NOT_A_SETTING}
    init = str(header.get("init_kind", own.get("init", "template")))
    return Setting(str(config.get("model", "")), json.dumps(own, sort_keys=True) if own else "", init)


def _groups(table: pa.Table) -> tuple[Group, ...]:
    keys = [
        table[name].to_pylist() for name in ("model", "choices", "init", "dataset", "method", "seed", "id", "error")
    ]
    places: dict[tuple[str, ...], dict[int, dict[str, int]]] = {}
    errors: dict[tuple[str, ...], int] = {}
    for at, (*key, seed, name, error) in enumerate(zip(*keys, strict=True)):
        group = tuple(key)
        places.setdefault(group, {})
        if error is not None:
            errors[group] = errors.get(group, 0) + 1
        else:
            # two runs of one setting may overlap; their rows are the same, and the first is kept
            places[group].setdefault(seed, {}).setdefault(name, at)
    made = [_group(table, key, by_seed, errors.get(key, 0)) for key, by_seed in places.items() if by_seed]
    made.sort(key=lambda group: (group.setting, group.dataset, look(group.method).order))
    return tuple(made)


def _group(table: pa.Table, key: tuple[str, ...], by_seed: dict[int, dict[str, int]], errors: int) -> Group:
    model, choices, init, dataset, method = key
    common = sorted(set.intersection(*(set(places) for places in by_seed.values())))
    every = set().union(*by_seed.values())
    if not common:  # seeds that share no image can't be averaged; the fullest one is reported
        seed = max(by_seed, key=lambda each: len(by_seed[each]))
        by_seed, common = {seed: by_seed[seed]}, sorted(by_seed[seed])
    seeds = {seed: _rows(table, common, [by_seed[seed][name] for name in common]) for seed in sorted(by_seed)}
    return Group(Setting(model, choices, init), dataset, method, seeds, errors, len(every) - len(common))


def _rows(table: pa.Table, ids: list[str], places: list[int]) -> SeedRows:
    part = table.take(pa.array(places, pa.int64()))
    columns = {name: part[name].to_numpy() for name in _SCALARS}
    return SeedRows(tuple(ids), columns, _matrix(part, "probs"), _matrix(part, "top_ids"))


def _matrix(part: pa.Table, name: str) -> np.ndarray | None:
    """A list column as an array [N, K]; None where the column is absent or has gaps."""
    if name not in part.column_names or part[name].null_count:
        return None
    column = part[name].combine_chunks()
    width = len(column[0])
    return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(part), width)
