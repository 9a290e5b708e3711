"""The configuration of a benchmark run: what changes its numbers (`RunConfig`) and what does not (`Settings`)."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from poise.defaults import PAPER_VIEWS
from poise.errors import InvalidOptionError, UnknownNameError, reason_of
from poise.evaluate.streams import BY_CLASS, SHUFFLED
from poise.files import read_bounded
from poise.options import MachineOptions, ModelOptions, rows
from poise.text import file_name
from poise.views import ENGINES

ALL_METHODS = "all"  # in the table of options: those of every method
_MAX_BYTES = 1 << 20  # of a configuration file
_SEEDS = range(-(2**63), 2**63)  # that a column of the records can have


@dataclass(frozen=True, kw_only=True)
class RunConfig(MachineOptions, ModelOptions):
    """Everything that can change a number of a run. Two runs with the same values give the same records.

    Beside the fields below: those of `poise.options` that runs share with classifiers, some with another default.
    """

    name: str = ""  #: the run's id; "" = model and hash, so that the same choices always use the same folder
    title: str = ""  #: for people
    datasets: tuple[str, ...] = ()  #: names of `poise list datasets`, folder:PATH, wds:PATTERN, hf:ORG/NAME:SPLIT
    methods: tuple[str, ...] = ("paper",)  #: names and groups of `poise list methods`
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  #: method (or "all") -> options of methods.get
    seeds: tuple[int, ...] = (1, 2, 3)  #: of the random views; each is a pass over the images
    limit: int = 0  #: images per dataset; 0 = all
    views: int = PAPER_VIEWS  #: per image, including the plain view
    view_engine: str = "auto"  #: auto = poise.views.DEFAULT_ENGINE
    augmix: str = "auto"  #: auto = as TPT's protocol has it for the dataset; c-tpt = also on for ImageNet's shifts
    template: str = ""  #: "" = that of the dataset
    framework: str = "tpt"  #: tpt = one prompt per image, reset for each; `poise list frameworks` shows the others
    framework_options: dict[str, Any] = field(default_factory=dict)  #: such as size, variant, temperature
    order: str = SHUFFLED  #: of a stream: shuffled (by the seed) or by-class; ``mixed:A+B`` is a stream of datasets
    unknown: float = 0.0  #: share of the classes left out of the labels; their images are out-of-distribution
    calibrate: int = 0  #: images per dataset that reports calibrate each method with; metrics are of the others
    coverage: float = 0.9  #: of the prediction sets, if ``calibrate``
    max_error: float = 0.05  #: among answered images, certified with confidence 95 %, if ``calibrate``
    batch_size: int = 0  #: images computed together; 0 = by device
    chunk: int = 0  #: images per file: the most that a killed run loses; 0 = by device and number of images

    def hashed(self) -> dict[str, Any]:
        """Return the fields that enter the hash: all except name and title, and levels that nothing depends on."""
        unused = {"name", "title", *([] if self.calibrate else ["calibrate", "coverage", "max_error"])}
        later = ["order", "unknown", *(row.name for row in rows(RunConfig) if row.about.later)]
        unused |= {name for name in later if getattr(self, name) == getattr(RunConfig, name)}
        values = {key: value for key, value in asdict(self).items() if key not in unused}
        # The folders of earlier versions keep their names: "paper" was called "all", and a chunk had 128 images.
        groups = {"paper": "all", "all": "all methods"}
        methods = [groups.get(name, name) for name in self.methods]
        return _plain({**values, "methods": methods, "chunk": self.chunk or 128})

    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON of the fields that change numbers."""
        text = json.dumps(self.hashed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def run_id(self) -> str:
        """The name of the run's folder: the configured one, or the model and the hash."""
        return file_name(self.name) if self.name else f"{file_name(self.model)}-{self.digest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How and where a run is done. Nothing here changes a number."""

    data: str = "data"  #: folder of the datasets
    out: str = "runs"  #: folder of the runs
    workers: int = 0  #: threads (on CUDA: processes) that read images; 0 = by the number of cores
    engine: str = "local"  #: local, or ray for several processes and machines
    address: str = ""  #: of a Ray cluster
    actors: int = 0  #: Ray processes, each with a model; 0 = by the resources of the cluster
    tsne: bool = False  #: also store class text features before and after tuning, for the t-SNE figure
    deep: bool = False  #: on resuming, compare the pixels of all finished images, not only sizes and times of files


def build(values: Mapping[str, Any]) -> tuple[RunConfig, Settings]:
    """Build both halves of a configuration from one flat mapping, as a TOML file or the command line has it.

    The key ``temperature`` is short for ``framework_options.temperature``.

    Args:
        values: fields of `RunConfig` and `Settings`, by name.

    Example:
        >>> config, settings = build({"datasets": ["caltech101"], "methods": ["zero-shot"], "out": "runs"})
        >>> config.views, settings.out
        (64, 'runs')
    """
    types = _types()
    for key in values:
        if key not in {*types, "temperature"}:
            raise UnknownNameError.of("configuration key", key, [*types, "temperature"])
    typed = {key: _coerce(key, value, types[key]) for key, value in values.items() if key != "temperature"}
    config = RunConfig(**_own(RunConfig, typed))
    if values.get("temperature") is not None:
        number = _temperature(values["temperature"])
        config = replace(config, framework_options={**config.framework_options, "temperature": number})
    check(config)
    settings = Settings(**_own(Settings, typed))
    _check_least(settings, {"workers": 0, "actors": 0})
    return config, settings


def _own(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {row.name: values[row.name] for row in fields(kind) if row.name in values}


@functools.cache
def _types() -> dict[str, Any]:
    return {**get_type_hints(RunConfig), **get_type_hints(Settings)}


def _temperature(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidOptionError(f"'temperature' is {value!r}.", hint="Give a number above 0.") from None


def read(path: str | Path) -> list[dict[str, Any]]:
    """Read the runs that a TOML file describes: its top-level keys, changed by each ``[[runs]]`` entry.

    With ``base``, a path relative to the file, they change the run of that other file; if it has several, ``base_run``
    is the name of one of them.
    """
    path = Path(path)
    content = _toml(path)
    base = _base(path, content)
    return [{**base, **entry} for entry in _entries(path, content)]


def _base(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Remove ``base`` from ``content`` and return the run that it names; a base can't have a base itself."""
    file, run = content.pop("base", None), content.pop("base_run", None)
    if file is None:
        if run is not None:
            raise InvalidOptionError(f"'{path}' has 'base_run' without 'base'.", hint="Name the file as well.")
        return {}
    source = path.parent / str(file)
    if not source.is_file():
        raise InvalidOptionError(
            f"'{path}' builds on '{file}', but there is no file '{source}'.",
            hint="'base' is relative to the folder of the file that names it.",
        )
    content = _toml(source)
    if "base" in content:
        raise InvalidOptionError(
            f"'{source}', the base of '{path}', has a base itself.", hint="One level is accepted: name that one."
        )
    entries = _entries(source, content)
    runs = {str(values.pop("name", "")): values for values in entries}  # names are not inherited
    if run is None and len(entries) == 1:
        return entries[0]
    if run is None:
        names = ", ".join(filter(None, runs)) or "none has a name: give each one"
        raise InvalidOptionError(f"'{source}' has several runs.", hint=f"Set 'base_run' to one of: {names}.")
    if run not in runs:
        raise UnknownNameError.of("run", str(run), runs, owner=f"'{source}'")
    return runs[run]


def _toml(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise InvalidOptionError(f"'{path}' is a folder.", hint="Give one of the TOML files in it.")
    try:
        return dict(_plain(tomllib.loads(read_bounded(path, _MAX_BYTES).decode("utf-8"))))
    except FileNotFoundError:
        raise InvalidOptionError(f"There is no configuration file '{path}'.", hint="Give a TOML file.") from None
    except (OSError, ValueError, RecursionError) as problem:  # ValueError: not TOML, or not UTF-8
        if isinstance(problem, InvalidOptionError):
            raise
        raise InvalidOptionError(f"The configuration file '{path}' is not TOML: {reason_of(problem)}.") from None


def _entries(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs of one file: its top-level keys, changed by each ``[[runs]]`` entry."""
    runs = content.pop("runs", [{}])
    if not isinstance(runs, list) or not all(isinstance(entry, dict) for entry in runs):
        raise InvalidOptionError(f"'runs' in '{path}' is not a list of tables.", hint="Write each one as [[runs]].")
    return [{**content, **entry} for entry in runs]


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return ``values`` with ``key=value`` texts applied; a dot leads into a table: ``options.kld+cats.lr=0.003``."""
    result = dict(_plain(values))
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidOptionError(f"'{text}' is not an assignment.", hint="Write key=value, for example views=32.")
        *tables, last = _path(key.strip())
        target = result
        for table in tables:
            target = target.setdefault(table, {})
            if not isinstance(target, dict):
                raise InvalidOptionError(
                    f"'{text}' needs the table '{table}', which is {target!r}.", hint="Make it a table."
                )
        target[last] = _parse(value.strip())
    return result


def _path(key: str) -> list[str]:
    """Split a key at its dots; the name of a method may contain dots, the names of its options do not.

    >>> _path("options.tpt | cots.cots.selection"), _path("options.tpt-1.5.lr")
    (['options', 'tpt | cots', 'cots', 'selection'], ['options', 'tpt-1.5', 'lr'])
    """
    from poise.objectives import objectives
    from poise.posthoc import posthoc

    first, _, rest = key.partition(".")
    if not rest:
        return [key]
    types = _types()
    if first not in types:
        raise UnknownNameError.of("configuration key", first, types)
    if get_origin(types[first]) is not dict:
        tables = ", ".join(name for name, kind in types.items() if get_origin(kind) is dict)
        raise InvalidOptionError(f"'{key}' has a dot, but '{first}' is no table.", hint=f"Tables: {tables}.")
    if first != "options":
        return [first, rest]
    method, *parts = rest.rsplit(".", 2)
    nested = len(parts) == 2 and (parts[0] in objectives or parts[0] in posthoc)
    return [first, method, *parts] if nested else [first, *rest.rsplit(".", 1)]


def check(config: RunConfig) -> None:
    """Reject values that no run can have. Names of models, data and methods are checked where they are used."""
    from poise.evaluate.held_out import check_calibration
    from poise.tuning.frameworks import frameworks

    choices = {
        "view_engine": ["auto", *ENGINES],
        "augmix": ["auto", "c-tpt", "on", "off"],
        "framework": frameworks.names(),
        "order": [SHUFFLED, BY_CLASS],
    }
    for name, accepted in choices.items():
        if getattr(config, name) not in accepted:
            raise UnknownNameError.of(name, getattr(config, name), accepted)
    _check_least(config, {"views": 1, "chunk": 0, "limit": 0, "batch_size": 0, "calibrate": 0})
    for name, flag in {"datasets": "dataset", "methods": "method", "seeds": "seeds"}.items():
        values = getattr(config, name)
        if not values:
            raise InvalidOptionError(f"'{name}' is empty.", hint=f"Give at least one (--{flag}).")
        if len(set(values)) != len(values):
            raise InvalidOptionError(f"'{name}' has a value twice: {', '.join(map(str, values))}.")
    wrong = [seed for seed in config.seeds if seed not in _SEEDS]
    if wrong:
        raise InvalidOptionError(f"The seed {wrong[0]} is too large.", hint="Give one of less than 2**63.")
    if config.name.startswith(".") or re.search(r"[/\\]", config.name):
        raise InvalidOptionError(f"The name '{config.name}' is a path.", hint="Give a plain name; --out is the folder.")
    for name, options in config.options.items():
        if not isinstance(options, dict):
            raise InvalidOptionError(f"'options.{name}' is {options!r}.", hint=f"Write options.{name}.lr=0.003, say.")
    if not 0 <= config.unknown < 1 or (config.unknown and config.calibrate):
        raise InvalidOptionError(
            f"'unknown' is {config.unknown:g}, and 'calibrate' is {config.calibrate}.",
            hint="Give a share from 0 to below 1, and no calibration images, which would have unknown classes.",
        )
    check_calibration(config)


def _check_least(options: RunConfig | Settings, least: Mapping[str, int]) -> None:
    for name, accepted in least.items():
        if getattr(options, name) < accepted:
            raise InvalidOptionError(f"'{name}' is {getattr(options, name)}.", hint=f"Give at least {accepted}.")


def _coerce(key: str, value: Any, field_type: Any) -> Any:
    """Return ``value`` as the type of the field."""
    kind = get_origin(field_type) or field_type
    if kind is tuple:
        return _several(key, value, get_args(field_type)[0])
    if kind is UnionType:  # a type, or None
        if value is None:
            return None
        kind = get_args(field_type)[0]
    if kind is Literal:
        if value not in (accepted := get_args(field_type)):
            raise UnknownNameError.of(key, str(value), accepted)
        return value
    if kind is int:
        value = _number(value)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise InvalidOptionError(f"'{key}' is {value!r}.", hint=f"It must be of type {kind.__name__}.")
    if isinstance(value, str) and "\0" in value:
        raise InvalidOptionError(f"'{key}' has a null character.", hint="No path or name can have one.")
    return value


def _several(key: str, value: Any, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Return a list, one value, or a text with commas as a tuple."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        return tuple(kind(text) for part in parts if (text := str(part).strip()))
    except ValueError:
        raise InvalidOptionError(f"'{key}' is {value!r}.", hint="Give whole numbers, for example 1,2,3.") from None


def _number(value: Any) -> Any:
    """Return a text as a whole number, if it is one; "auto" and "all" are 0."""
    if value in ("auto", "all"):
        return 0
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value) else value


def _parse(text: str) -> Any:
    """Return a value as TOML reads it; what TOML can't read is plain text."""
    try:
        return _plain(tomllib.loads(f"value = {text}")["value"])
    except (tomllib.TOMLDecodeError, InvalidOptionError, RecursionError):
        return text


def _plain(values: Any) -> Any:
    """Return the values as JSON would return them, so that stored and new configurations compare equal."""
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as problem:  # TOML has dates; tables can be nested without end
        raise InvalidOptionError(
            f"A value of the configuration can't be stored: {problem}.", hint="Give numbers, texts, lists and tables."
        ) from None
