"""What a benchmark run is: the choices that change a number (`RunConfig`) and those that don't (`Settings`)."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from poise.errors import InvalidOptionError, UnknownNameError
from poise.storage import slug

ALL_METHODS = "all"
CHOICES = {
    "view_engine": ("auto", "pil", "batched"),
    "augmix": ("auto", "c-tpt", "on", "off"),
    "framework": ("tpt", "dynaprompt", "ensemble"),
}


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that can change a number of a run. Two runs with the same values give the same records."""

    name: str = ""  # the run's id; "" = model and hash, so that the same choices always meet the same folder
    title: str = ""  # for people
    model: str = "pocket"
    datasets: tuple[str, ...] = ()
    methods: tuple[str, ...] = (ALL_METHODS,)
    options: dict[str, dict[str, Any]] = field(default_factory=dict)  # method (or "all") -> options of methods.get
    seeds: tuple[int, ...] = (1, 2, 3)
    limit: int = 0  # images per dataset; 0 = all
    views: int = 64  # of each image, the plain one included
    view_engine: str = "auto"  # auto = batched on CUDA, Pillow elsewhere
    augmix: str = "auto"  # auto = the dataset's own (TPT's protocol); c-tpt = also on for ImageNet's shifts
    template: str = ""  # "" = the dataset's own
    framework: str = "tpt"  # tpt = one prompt per image, reset for each; see poise.tuning.make_tuner for the others
    framework_options: dict[str, Any] = field(default_factory=dict)  # see the rows in poise.tuning.frameworks
    init: str = "template"  # where tuning starts: template, fpp, or the file of a fitted prompt
    batch_size: int = 0  # images computed together; 0 = by device
    chunk: int = 128  # images per file: what a killed run loses at most
    device: str = "auto"
    dtype: str = "auto"

    def hashed(self) -> dict[str, Any]:
        """The fields that enter the hash: all but the two names."""
        values = asdict(self)
        del values["name"], values["title"]
        return _plain(values)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON of the fields that change numbers."""
        text = json.dumps(self.hashed(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def run_id(self) -> str:
        """The folder's name: the given one, or one made of the model and the hash."""
        return slug(self.name) if self.name else f"{slug(self.model)}-{self.digest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How and where a run is done. Nothing here changes a number."""

    data: str = "data"
    out: str = "runs"
    workers: int = 0  # threads (on CUDA: processes) that read images; 0 = by the number of cores
    engine: str = "local"
    address: str = ""  # of a cluster, for engines that have one
    actors: int = 0  # processes with a model each, for engines that have several; 0 = by what the cluster has


def build(values: Mapping[str, Any]) -> tuple[RunConfig, Settings]:
    """Both halves of a run from one flat mapping, as a TOML file or the command line gives it."""
    config_keys, settings_keys = _names(RunConfig), _names(Settings)
    for key in values:
        if key not in config_keys | settings_keys:
            raise UnknownNameError.of("configuration key", key, config_keys | settings_keys)
    config = RunConfig(**{key: _coerce(RunConfig, key, value) for key, value in values.items() if key in config_keys})
    settings = Settings(**{key: _coerce(Settings, key, value) for key, value in values.items() if key in settings_keys})
    check(config)
    return config, settings


def read(path: str | Path) -> list[dict[str, Any]]:
    """The runs that a TOML file describes: its top-level keys, changed by each ``[[runs]]`` entry.

    With ``base``, a path relative to the file, they change what the run of that other file says; where that one has
    several, ``base_run`` is the name of the one that is meant.
    """
    path = Path(path)
    content = _toml(path)
    values = _base(path, content)
    return [{**values, **entry} for entry in _entries(path, content)]


def _base(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """What ``content`` builds on, taken out of it. One level deep, so that no setting is far to seek."""
    named, wanted = content.pop("base", None), content.pop("base_run", None)
    if named is None:
        if wanted is not None:
            raise InvalidOptionError(f"'{path}' has 'base_run' without 'base'.", hint="Name the file as well.")
        return {}
    source = path.parent / str(named)
    if not source.is_file():
        raise InvalidOptionError(
            f"'{path}' builds on '{named}', but there is no file '{source}'.",
            hint="'base' is relative to the folder of the file that names it.",
        )
    below = _toml(source)
    if "base" in below:
        raise InvalidOptionError(
            f"'{source}', the base of '{path}', has a base itself.", hint="One level is accepted: name that one."
        )
    entries = _entries(source, below)
    runs = {str(values.pop("name", "")): values for values in entries}  # a name is one run's own
    if wanted is None and len(entries) == 1:
        return entries[0]
    if wanted is None:
        named_runs = ", ".join(filter(None, runs)) or "none has a name: give each one"
        raise InvalidOptionError(f"'{source}' has several runs.", hint=f"Set 'base_run' to one of: {named_runs}.")
    if wanted not in runs:
        raise UnknownNameError.of(f"run of '{source}'", str(wanted), runs)
    return runs[wanted]


def _toml(path: Path) -> dict[str, Any]:
    if path.is_dir():
        raise InvalidOptionError(f"'{path}' is a folder.", hint="Give one of the TOML files in it.")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InvalidOptionError(f"There is no configuration file '{path}'.", hint="Give a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise InvalidOptionError(f"The configuration file '{path}' is not TOML: {problem}.") from None


def _entries(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """A file's own runs: its top-level keys, changed by each ``[[runs]]`` entry."""
    runs = content.pop("runs", [{}])
    if not isinstance(runs, list) or not all(isinstance(entry, dict) for entry in runs):
        raise InvalidOptionError(f"'runs' in '{path}' is not a list of tables.", hint="Write each one as [[runs]].")
    return [{**content, **entry} for entry in runs]


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """``values`` with ``key=value`` texts applied; a dot goes into a table: ``options.kld+cats.lr=0.003``."""
    result = json.loads(json.dumps(values))
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidOptionError(f"'{text}' is not an assignment.", hint="Write key=value, for example views=32.")
        *tables, last = key.strip().split(".", 2) if key.startswith("options.") else [key.strip()]
        place = result
        for table in tables:
            place = place.setdefault(table, {})
        place[last] = _parse(value.strip())
    return dict(result)


def check(config: RunConfig) -> None:
    """Refuse values that no run can have. Names of models, data and methods are checked where they are used."""
    for name, accepted in CHOICES.items():
        given = getattr(config, name)
        if given not in accepted:
            near = difflib.get_close_matches(given, accepted, n=1)
            guess = f" Did you mean '{near[0]}'?" if near else ""
            raise InvalidOptionError(f"'{name}' is '{given}'.{guess}", hint=f"Accepted: {', '.join(accepted)}.")
    for name, least in {"views": 1, "chunk": 1, "limit": 0, "batch_size": 0}.items():
        if getattr(config, name) < least:
            raise InvalidOptionError(
                f"'{name}' is {getattr(config, name)}.", hint=f"Give a whole number from {least} on."
            )
    for name, flag in {"datasets": "dataset", "methods": "method", "seeds": "seeds"}.items():
        given = getattr(config, name)
        if not given:
            raise InvalidOptionError(f"'{name}' is empty.", hint=f"Give at least one (--{flag}).")
        if len(set(given)) != len(given):
            raise InvalidOptionError(f"'{name}' names something twice: {', '.join(map(str, given))}.")


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Each field that differs, as ``field: theirs -> ours``, nested fields with dots."""
    found = []
    for key in sorted({*ours, *theirs}):
        mine, stored = ours.get(key), theirs.get(key)
        if isinstance(mine, dict) and isinstance(stored, dict):
            found += differences(mine, stored, f"{prefix}{key}.")
        elif mine != stored:
            found.append(f"{prefix}{key}: {_short(stored)} -> {_short(mine)}")
    return found


def adopt(config: RunConfig, stored: Mapping[str, Any]) -> RunConfig:
    """``config`` with its open ("auto") choices taken from a stored run, so that a resumed run repeats them."""
    return replace(config, batch_size=config.batch_size or int(stored.get("batch_size", 0)))


def _names(kind: type) -> set[str]:
    return {entry.name for entry in fields(kind)}


def _coerce(kind: type, key: str, value: Any) -> Any:
    """``value`` as the type of the field, or a refusal that names the field."""
    wanted = {entry.name: str(entry.type) for entry in fields(kind)}[key]
    if wanted.startswith("tuple"):
        return _tuple(key, value, int if "int" in wanted else str)
    if wanted == "int" and value in ("auto", "all"):
        return 0
    if wanted == "int" and isinstance(value, str) and re.fullmatch(r"-?\d+", value):
        return int(value)
    python_type: type = {"str": str, "int": int}.get(wanted, dict)
    if not isinstance(value, python_type) or (python_type is int and isinstance(value, bool)):
        raise InvalidOptionError(f"'{key}' is {value!r}.", hint=f"It must be of type {wanted}.")
    return value


def _tuple(key: str, value: Any, kind: type) -> tuple[Any, ...]:
    """A list, one value, or a text with commas as a tuple of ``kind``."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    texts = [str(part).strip() for part in parts]
    try:
        return tuple(kind(text) for text in texts if text)
    except ValueError:
        raise InvalidOptionError(f"'{key}' is {value!r}.", hint="Give whole numbers, for example 1,2,3.") from None


def _parse(text: str) -> Any:
    """A value as TOML reads it; what TOML can't read is a plain text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _plain(values: Any) -> Any:
    """The value as JSON would give it back, so that stored and fresh configurations compare equal."""
    return json.loads(json.dumps(values))


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
