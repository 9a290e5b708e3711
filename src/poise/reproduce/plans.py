"""The runs behind each published table: the files of ``configs/``, which the wheel contains as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import poise
from poise.errors import InvalidOptionError, UnknownNameError
from poise.evaluate.config import RunConfig, Settings, build, read
from poise.report.published.paper import TableLayout
from poise.report.tables.block import LAYOUTS

QUICK = 200  # images of a dataset in a quick run


@dataclass(frozen=True)
class Plan:
    """What is run: a published table, or the runs of a file of one's own, which nothing is published for."""

    name: str
    runs: tuple[RunConfig, ...]
    settings: Settings
    layout: TableLayout | None = None  # of the published table

    @property
    def datasets(self) -> tuple[str, ...]:
        """The datasets of all runs."""
        return tuple(dict.fromkeys(name for config in self.runs for name in config.datasets))


def config_file(table: str) -> Path:
    """Return the file with the runs of a published table."""
    if table not in LAYOUTS:
        raise UnknownNameError.of("table", table, LAYOUTS)
    package = Path(poise.__file__).parent
    folders = (package / "configs", package.parents[1] / "configs")  # of the wheel, or of a checkout
    return next(file for folder in folders if (file := folder / f"{table}.toml").is_file())


def plan(table: str, changes: Mapping[str, Any], *, quick: bool = False) -> Plan:
    """Return the runs of a table, or of a TOML file, with some values changed.

    Args:
        table: a name of `LAYOUTS`, or the path of a configuration file.
        changes: fields of `RunConfig` and `Settings` that replace those of the file. ``datasets`` chooses some of the
            file's; ``init`` has the files of fitted prompts by kind.
        quick: take `QUICK` images of each dataset.
    """
    own = table not in LAYOUTS and table.endswith(".toml")
    inits, chosen = dict(changes.get("init") or {}), tuple(changes.get("datasets") or ())
    fixed = {key: value for key, value in changes.items() if key not in ("init", "datasets") and value is not None}
    runs = []
    for values in read(table if own else config_file(table)):
        values = {**values, **fixed, "datasets": _some(values.get("datasets", ()), chosen)}
        kind = str(values.get("init", "template")).partition(":")[0]
        values |= {"init": f"{kind}:{inits[kind]}"} if kind in inits else {}
        name = str(values.get("name") or Path(table).stem)
        values |= {"limit": QUICK, "name": f"{name}-quick"} if quick else {"name": name}
        runs.append(build(values))
    name = Path(table).stem if own else table
    name = f"{name}-quick" if quick else name
    return Plan(name, tuple(config for config, _ in runs), runs[0][1], None if own else LAYOUTS[table])


def _some(known: Any, chosen: tuple[str, ...]) -> Any:
    names = list(known)
    for name in chosen:
        if name not in names:
            raise InvalidOptionError(
                f"The table has no dataset '{name}'.", hint=f"It has: {', '.join(map(str, names))}."
            )
    return [name for name in names if name in chosen] if chosen else names
