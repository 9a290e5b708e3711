"""Plug-ins: packages and files of others, whose import registers rows.

A package names its module in the entry-point group ``poise.plugins``. The variable ``POISE_IMPORT`` names files and
modules that no package installs. `Registry` calls `load` when it is asked for names that it does not have yet, so every
process that looks a name up finds the rows, and none pays for plug-ins before.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from poise.errors import PluginError, PoiseError, reason_of

GROUP = "poise.plugins"
CHOICE = "POISE_PLUGINS"  # names of the installed plug-ins to load, with commas; all of them if it is not set
IMPORT = "POISE_IMPORT"  # files and modules, separated as the folders of PATH are


@dataclass(frozen=True)
class Plugin:
    """A module to import: of an installed package, or one that ``POISE_IMPORT`` names."""

    name: str
    module: str  # or a file
    package: str = ""  # with its version

    def load(self) -> None:
        """Import the module, which registers its rows."""
        try:
            if self.module.endswith(".py"):
                _import_file(Path(self.module))
            else:
                importlib.import_module(self.module)
        except (Exception, SystemExit) as error:
            kind = "" if isinstance(error, PoiseError) else f"{type(error).__name__}: "
            raise PluginError(
                f"{self._title()} can't be loaded: {kind}{reason_of(error)}.", hint=self._hint()
            ) from error

    def _title(self) -> str:
        return f"The plug-in '{self.name}' of the package {self.package}" if self.package else f"'{self.module}'"

    def _hint(self) -> str:
        if not self.package:
            return f"Check --import, or the variable {IMPORT}."
        return (
            f"Repair or uninstall the package, or name the plug-ins to load in the variable {CHOICE} (empty: none). "
            f"`python -c 'import {self.module}'` shows the whole error."
        )


def found() -> Iterator[Plugin]:
    """Yield the plug-ins of installed packages, then those that ``POISE_IMPORT`` names; nothing is imported."""
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else ""
        yield Plugin(point.name, point.value, package)
    for source in filter(None, os.environ.get(IMPORT, "").split(os.pathsep)):
        yield Plugin(source, source)


def chosen() -> list[Plugin]:
    """Return the plug-ins that are loaded: those that ``POISE_PLUGINS`` names, or all."""
    plugins, choice = list(found()), os.environ.get(CHOICE)
    if choice is None:
        return plugins
    names = [name.strip() for name in choice.split(",") if name.strip()]
    if unknown := set(names) - {plugin.name for plugin in plugins}:
        known = ", ".join(plugin.name for plugin in plugins if plugin.package) or "none"
        raise PluginError(f"{CHOICE} names '{min(unknown)}', which is not installed.", hint=f"Installed: {known}.")
    return [plugin for plugin in plugins if plugin.name in names or not plugin.package]


def variables() -> dict[str, str]:
    """Return the environment variables that choose plug-ins, for processes that do not inherit them."""
    return {name: os.environ[name] for name in (CHOICE, IMPORT) if name in os.environ}


class Loader:
    """Loads the plug-ins once per process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a plug-in may read registries while it is imported
        self._begun = False
        self._error: PluginError | None = None

    def __call__(self) -> None:
        """Import the plug-ins at the first call; if one fails, every call raises its error."""
        with self._lock:
            if not self._begun:
                self._begun = True
                try:
                    for plugin in chosen():
                        plugin.load()
                except PluginError as error:
                    self._error = error
            if self._error is not None:
                raise self._error


load = Loader()


def _import_file(path: Path) -> None:
    """Import a file by its name without ``.py``, so that processes that get this ``sys.path`` can import it, too."""
    file = path.expanduser().resolve()
    if not file.is_file():
        raise PluginError("there is no such file")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    found = getattr(importlib.import_module(file.stem), "__file__", None)
    if found is None or Path(found).resolve() != file:
        raise PluginError(f"the name '{file.stem}' is that of another module; rename the file")
