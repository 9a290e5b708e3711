"""Post-hoc steps, which change the confidence of any method's answer (``kld+cats | cots``); one file each."""

from __future__ import annotations

import importlib
import pkgutil

from poise.posthoc.steps import PostHoc, posthoc

__all__ = ["PostHoc", "posthoc"]

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")  # a new file registers its step
