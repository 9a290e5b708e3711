"""Reads a folder of runs: per-image rows and headers, sorted into comparable groups."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from poise.calibration import Tree
from poise.data.class_trees import class_tree
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.evaluate.config import RunConfig
from poise.evaluate.storage.checks import REPAIR, read_header
from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.storage.parts import pixels_in, read_parts
from poise.report.colours import base, order
from poise.report.records.calibrated import with_calibrated
from poise.report.records.groups import SCALARS, Group, SeedRows, Setting
from poise.views import DEFAULT_ENGINE

LONG = 40  # characters of a setting's name in comparisons
_NEEDED = ("run", "model", "dataset", "method", "seed", "id", "error", *SCALARS)


@dataclass(frozen=True)
class Records:
    """The contents of a folder of runs."""

    groups: tuple[Group, ...]
    headers: dict[str, dict[str, Any]]  # run -> run.json
    folders: dict[str, Path]  # run -> its folder

    @property
    def settings(self) -> list[Setting]:
        """All settings, sorted."""
        return list(dict.fromkeys(group.setting for group in self.groups))

    @property
    def datasets(self) -> list[str]:
        """All datasets, in the order of the groups."""
        return list(dict.fromkeys(group.dataset for group in self.groups))

    @property
    def methods(self) -> list[str]:
        """All methods, in the order in which reports show them."""
        return sorted({group.method for group in self.groups}, key=order)

    def method_settings(self, method: str) -> dict[str, Any]:
        """Return the stored settings of a method, from the first run that has it; empty if no header has them."""
        headers, name = self.headers.values(), base(method)
        return next((head["methods"][name] for head in headers if name in head.get("methods", {})), {})

    def tunes(self, method: str) -> bool:
        """Return whether a method changes the prompt, according to its stored settings."""
        settings = self.method_settings(method)
        return bool(settings.get("steps", 1) and settings.get("terms", True))

    def classes(self, dataset: str) -> tuple[str, ...]:
        """Return the class names of a dataset in label order; empty if no header has them."""
        entries = (header.get("datasets", {}).get(dataset, {}) for header in self.headers.values())
        return next((tuple(entry["classes"]) for entry in entries if entry.get("classes")), ())

    def label(self, setting: Setting) -> str:
        """Return the model, and the choices in which the setting differs from the others."""
        others = [_flat(other.values) for other in self.settings if other != setting]
        choices = sorted(_flat(setting.values).items())
        differing = [f"{key}={_short(value)}" for key, value in choices if any(o.get(key) != value for o in others)]
        return ", ".join([setting.model, *differing])

    def short_label(self, setting: Setting) -> str:
        """Return the label without a model that all settings share; if it is long, the names of the setting's runs."""
        shared = len({other.model for other in self.settings}) == 1 and len(self.settings) > 1
        text = self.label(setting).removeprefix(f"{setting.model}, ") if shared else self.label(setting)
        runs = " + ".join(run for run, header in self.headers.items() if Setting.of(header) == setting)
        return runs if len(text) > LONG and 0 < len(runs) < len(text) else text

    def changed(self, setting: Setting) -> list[str]:
        """Return the choices of a setting that are not the defaults of `poise bench run`, as ``name=value``."""
        usual = {**_flat(RunConfig().hashed()), "view_engine": DEFAULT_ENGINE, "dtype": "float32"}
        choices = sorted(_flat(setting.values).items())
        return [f"{key}={_short(value)}" for key, value in choices if usual.get(key) != value and value != "auto"]

    def unfinished(self) -> list[str]:
        """Return one sentence for each run with fewer images than its header announces."""
        sentences = []
        for run, folder in self.folders.items():
            header, ledger = self.headers[run], Ledger(folder / "ledger.jsonl")
            seeds = len(header.get("config", {}).get("seeds", ()))
            announced = seeds * sum(entry.get("images", 0) for entry in header.get("datasets", {}).values())
            done = sum(line.get("images", 0) for line in ledger.finished().values())
            if ledger.path.is_file() and done < announced:
                sentences.append(f"The run '{run}' is not finished: {done} of {announced} images (times seeds).")
        return sentences

    def chosen(
        self, *, setting: Setting | None = None, dataset: str | None = None, method: str | None = None
    ) -> Iterator[Group]:
        """Yield the groups with this setting, dataset and method; None matches all."""
        for group in self.groups:
            pairs = ((setting, group.setting), (dataset, group.dataset), (method, group.method))
            if all(expected is None or expected == actual for expected, actual in pairs):
                yield group


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested choices under the names that people use: ``tpt.lr`` for ``options.tpt.lr``; empty ones left out."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        prefix = "" if key in ("options", "framework_options") else f"{key}."
        flat |= {f"{prefix}{name}": leaf for name, leaf in inner.items()} if inner else {key: value}
    return {key: value for key, value in flat.items() if value not in ("", None, {})}


def _short(value: Any) -> str:
    """Return a choice as text; of a path, the file and its folder."""
    return "/".join(str(value).split("/")[-2:])


Runs = str | Path | Sequence[str | Path] | Records


def load(path: Runs) -> Records:
    """Read all finished records below ``path``: a run's folder or a folder of runs, or several of them."""
    if isinstance(path, Records):
        return path
    paths = [path] if isinstance(path, str | Path) else list(path)
    files = [file for root in dict.fromkeys(map(Path, paths)) for file in _headers_below(root)]
    headers: dict[str, dict[str, Any]] = {}
    folders: dict[str, Path] = {}
    tables: list[pa.Table] = []
    for file in files:
        header = read_header(file.parent)
        run = str(header.get("run", file.parent.name))
        if run in headers:
            raise InvalidOptionError(
                f"Two runs are called '{run}': '{folders[run]}' and '{file.parent}'.",
                hint="Report on one of their folders at a time, or rename one.",
            )
        headers[run], folders[run] = header, file.parent
        parts = list(read_parts(file.parent))
        pixels_in(parts, run)
        tables += [_with_setting(table, Setting.of(header)) for table in parts]
    if not any(len(table) for table in tables):
        below = "', '".join(map(str, paths))
        raise InvalidDatasetError(
            f"The runs below '{below}' have no rows yet.", hint="Let `poise bench run` finish a chunk."
        )
    groups = _groups(pa.concat_tables(tables, promote_options="permissive"))
    return Records(with_calibrated(groups, _trees(headers.values())), headers, folders)


def _trees(headers: Iterable[Mapping[str, Any]]) -> dict[str, Tree]:
    """Return the trees of datasets; of several runs, that of the first."""
    found: dict[str, Tree] = {}
    for header in headers:
        for name, paths in header.get("trees", {}).items():
            classes = header.get("datasets", {}).get(name, {}).get("classes", ())
            if classes and name not in found:
                found[name] = class_tree(classes, paths)
    return found


def _headers_below(root: Path) -> list[Path]:
    files = sorted(root.rglob("run.json")) if root.is_dir() else []
    if not files:
        problem = f"No run.json is below '{root}'." if root.is_dir() else f"There is no folder '{root}'."
        raise InvalidDatasetError(problem, hint="Give the folder that `poise bench run --out` wrote.")
    return files


def _with_setting(table: pa.Table, setting: Setting) -> pa.Table:
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise InvalidDatasetError(
            f"The records have no column {', '.join(missing)}.", hint="Another version of poise wrote them."
        )
    for name in ("choices", "init"):
        table = table.append_column(name, pa.array([getattr(setting, name)] * len(table), pa.string()))
    return table


def _groups(table: pa.Table) -> tuple[Group, ...]:
    names = ("model", "choices", "init", "dataset", "method", "seed", "id", "error")
    positions: dict[tuple[str, ...], dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    errors: Counter[tuple[str, ...]] = Counter()
    for position, (*key, seed, name, error) in enumerate(
        zip(*(table[name].to_pylist() for name in names), strict=True)
    ):
        if error is not None:
            errors[tuple(key)] += 1
        else:  # two runs of one setting may overlap; their rows are the same, and the first is used
            positions[tuple(key)][seed].setdefault(name, position)
    groups = [_group(table, key, by_seed, errors[key]) for key, by_seed in positions.items()]
    return tuple(sorted(groups, key=lambda group: (group.setting, group.dataset, order(group.method))))


def _group(table: pa.Table, key: tuple[str, ...], by_seed: dict[int, dict[str, int]], errors: int) -> Group:
    model, choices, init, dataset, method = key
    common = sorted(set.intersection(*map(set, by_seed.values())))
    uneven = len(set().union(*by_seed.values())) - len(common)
    if not common:  # seeds that share no image can't be averaged; the one with most images is reported
        seed = max(by_seed, key=lambda seed: len(by_seed[seed]))
        by_seed, common = {seed: by_seed[seed]}, sorted(by_seed[seed])
        uneven -= len(common)
    seeds = {}
    for seed in sorted(by_seed):
        part = table.take(pa.array([by_seed[seed][name] for name in common], pa.int64()))
        columns = {name: part[name].to_numpy() for name in SCALARS}
        has, logits = _independent(part)
        seeds[seed] = SeedRows(tuple(common), columns, _matrix(part, "probs"), _matrix(part, "top_ids"), has, logits)
    return Group(Setting(model, choices, init), dataset, method, seeds, errors, uneven).split()


def _independent(part: pa.Table) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return which independent labels each image has, and its logits [N, C] each; None of other labels."""
    logits = _matrix(part, "logits")
    if logits is None or not logits.shape[1] or "labels" not in part.column_names or part["labels"].null_count:
        return None, None
    has = np.zeros(logits.shape, dtype=bool)
    for row, labels in zip(has, part["labels"].to_pylist(), strict=True):
        if not all(0 <= label < len(row) for label in labels):
            raise InvalidDatasetError("The records have a label that does not exist.", hint=REPAIR)
        row[labels] = True
    return has, logits.astype(np.float64)


def _matrix(part: pa.Table, name: str) -> np.ndarray | None:
    """Return a list column as an array [N, K]; None where the column is absent or has gaps."""
    if name not in part.column_names or part[name].null_count:
        return None
    return np.asarray(part[name].combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(len(part), -1)
