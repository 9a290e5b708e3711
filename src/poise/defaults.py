"""The defaults that Python, the command line and benchmark runs share."""

from __future__ import annotations

DEFAULT_MODEL = "pocket"
DEFAULT_METHOD = "kld+cats"
DEFAULT_VIEWS = 64  # per image, including the plain view
