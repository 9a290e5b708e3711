"""The defaults that Python, the command line, the server and benchmark runs share."""

from __future__ import annotations

DEFAULT_MODEL = "pocket"
DEFAULT_METHOD = "kld+cats"
DEFAULT_VIEWS = 16  # per image, including the plain view; the answers are like those of 64 (docs/sensitivity.md)
PAPER_VIEWS = 64  # of benchmark runs, as published
