"""Keys of open_clip's configurations that poise does not know, because a later version of open_clip added them.

A key whose value is open_clip's default changes nothing and is left out. A number or a flag is passed on, if open_clip
has such a key, and the loaded model must then give the features that open_clip itself computes. All else is refused by
`schema.read`: texts and objects may name files, repositories or code.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

from poise.backbones.loaders.known_keys import OPEN_CLIP_MODEL

_LARGEST = 1e6


def take_new_keys(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return a ``model_cfg`` without keys that poise does not know but may accept, and those that must be passed on.

    The second value has the sections "" (the model's own keys), "vision_cfg" and "text_cfg".
    """
    known = OPEN_CLIP_MODEL.known
    parts = {"": (config, known, _defaults_of_model())}
    for name, kind in (("vision_cfg", CLIPVisionCfg), ("text_cfg", CLIPTextCfg)):
        if isinstance(config.get(name), dict):
            defaults = {field.name: field.default for field in dataclasses.fields(kind)}
            parts[name] = config[name], known[name].known, defaults  # type: ignore[union-attr]  # they are sections
    kept: dict[str, dict[str, Any]] = {}
    passed: dict[str, dict[str, Any]] = {}
    for section, (values, names, defaults) in parts.items():
        new = {key: value for key, value in values.items() if key not in names and key in defaults}
        same = {key for key, value in new.items() if type(value) is type(defaults[key]) and value == defaults[key]}
        numbers = {key: value for key, value in new.items() if key not in same and _is_number(value)}
        kept[section] = {key: value for key, value in values.items() if key not in same and key not in numbers}
        if numbers:
            passed[section] = numbers
    whole = kept.pop("")
    return {**whole, **kept}, passed


def _defaults_of_model() -> dict[str, Any]:
    parameters = inspect.signature(CLIP.__init__).parameters.values()
    return {part.name: part.default for part in parameters if part.default is not inspect.Parameter.empty}


def _is_number(value: object) -> bool:
    return type(value) in (bool, int, float) and math.isfinite(value) and abs(value) <= _LARGEST  # type: ignore[arg-type]
