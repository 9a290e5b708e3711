"""What a benchmark run is: the choices that change a number (`RunConfig`) and those that don't (`Settings`)."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from poise.errors import InvalidOptionError, UnknownNameError
from poise.storage import slug

ALL_METHODS = "all"


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
    framework: str = "tpt"  # tpt = one prompt per image, reset for each; `poise list frameworks` shows the others
    framework_options: dict[str, Any] = field(default_factory=dict)  # such as size, variant, temperature
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
    """Both halves of a run from one flat mapping, as a TOML file or the command line gives it.

    The key ``temperature``, a number or the JSON file that `poise fit temperature` wrote, is short for
    ``framework_options.temperature``.
    """
    config_types, settings_types = get_type_hints(RunConfig), get_type_hints(Settings)
    given = dict(values)
    temperature = given.pop("temperature", None)
    for key in given:
        if key not in {**config_types, **settings_types}:
            raise UnknownNameError.of("configuration key", key, [*config_types, *settings_types, "temperature"])
    typed = {key: _coerce(key, value, config_types.get(key) or settings_types[key]) for key, value in given.items()}
    config = RunConfig(**{key: value for key, value in typed.items() if key in config_types})
    if temperature is not None:
        number = _temperature(temperature, config.model)
        config = replace(config, framework_options={**config.framework_options, "temperature": number})
    check(config)
    return config, Settings(**{key: value for key, value in typed.items() if key in settings_types})


def _temperature(given: Any, model: str) -> float:
    """The number itself, or the one in a file of `poise fit temperature` that was fitted for the same model."""
    try:
        return float(given)
    except (TypeError, ValueError):
        pass
    try:
        facts = json.loads(Path(str(given)).read_text("utf-8"))
        number, fitted = float(facts["temperature"]), str(facts["model"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidOptionError(
            f"'temperature' is {given!r}.",
            hint="Give a number above 0, or the JSON file that `poise fit temperature` wrote.",
        ) from None
    if fitted != model:
        raise InvalidOptionError(
            f"The temperature in '{given}' was fitted for the model '{fitted}', and this run has '{model}'.",
            hint="Fit one for this model with `poise fit temperature`.",
        )
    return number


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
        return dict(_plain(tomllib.loads(path.read_text("utf-8"))))
    except FileNotFoundError:
        raise InvalidOptionError(f"There is no configuration file '{path}'.", hint="Give a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise InvalidOptionError(f"The configuration file '{path}' is not TOML: {problem}.") from None


def _entries(path: Path, content: dict[str, Any]) -> list[dict[str, Any]]:
    """A file's own runs: its top-level keys, changed by each ``[[runs]]`` entry."""
    runs = content.pop("runs", [{}])
    if not isinstance(runs, list) or not all(isinstance(entry, dict) for entry in runs):
        raise InvalidOptionError(f"'runs' in '{path}' is not a list of tables.", hint="Write each one as [[runs]].")
    return [{**content, **entry} for entry in runs]


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """``values`` with ``key=value`` texts applied; a dot goes into a table: ``options.kld+cats.lr=0.003``."""
    result = dict(_plain(values))
    for text in assignments:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InvalidOptionError(f"'{text}' is not an assignment.", hint="Write key=value, for example views=32.")
        *tables, last = _path(key.strip())
        place = result
        for table in tables:
            place = place.setdefault(table, {})
            if not isinstance(place, dict):
                raise InvalidOptionError(f"'{text}' goes into '{table}', which is {place!r}.", hint="Make it a table.")
        place[last] = _parse(value.strip())
    return result


def _path(key: str) -> list[str]:
    """The parts of a key with dots; a method's name may have dots of its own, its options have none."""
    first, _, rest = key.partition(".")
    if not rest:
        return [key]
    types = {**get_type_hints(RunConfig), **get_type_hints(Settings)}
    if first not in types:
        raise UnknownNameError.of("configuration key", first, types)
    if get_origin(types[first]) is not dict:
        tables = ", ".join(name for name, kind in types.items() if get_origin(kind) is dict)
        raise InvalidOptionError(f"'{key}' goes into '{first}', which is no table.", hint=f"Tables: {tables}.")
    return [first, *rest.rsplit(".", 1)] if first == "options" else [first, rest]


def choices() -> dict[str, list[str]]:
    """What may be chosen, for the keys that name one of several."""
    from poise.tuning.frameworks import frameworks

    return {
        "view_engine": ["auto", "pil", "batched"],
        "augmix": ["auto", "c-tpt", "on", "off"],
        "framework": frameworks.names(),
    }


def check(config: RunConfig) -> None:
    """Refuse values that no run can have. Names of models, data and methods are checked where they are used."""
    for name, accepted in choices().items():
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
    for name, options in config.options.items():
        if not isinstance(options, dict):
            raise InvalidOptionError(f"'options.{name}' is {options!r}.", hint=f"Write options.{name}.lr=0.003, say.")


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


def _coerce(key: str, value: Any, wanted: Any) -> Any:
    """``value`` as the type of the field, or a refusal that names the field."""
    if get_origin(wanted) is tuple:
        return _tuple(key, value, get_args(wanted)[0])
    kind = get_origin(wanted) or wanted
    if kind is int and value in ("auto", "all"):
        return 0
    if kind is int and isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InvalidOptionError(f"'{key}' is {value!r}.", hint=f"It must be of type {kind.__name__}.")
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
        return _plain(tomllib.loads(f"value = {text}")["value"])
    except (tomllib.TOMLDecodeError, InvalidOptionError, RecursionError):
        return text


def _plain(values: Any) -> Any:
    """The value as JSON would give it back, so that stored and fresh configurations compare equal."""
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as problem:  # TOML has dates; tables can be nested without end
        raise InvalidOptionError(
            f"A value of the configuration can't be stored: {problem}.", hint="Give numbers, texts, lists and tables."
        ) from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
