"""Rules that answer without tuning the prompt, from the features of views and class texts; one file each."""

from __future__ import annotations

import importlib
import pkgutil

from poise.rules.rule import CosineHead, Gives, LogitHead, Rule, RuleAnswer, State, StreamRule, rules

__all__ = ["CosineHead", "Gives", "LogitHead", "Rule", "RuleAnswer", "State", "StreamRule", "rules"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")  # a new file registers its rule
