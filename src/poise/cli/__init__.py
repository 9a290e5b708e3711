"""The command line: one file per command. Nothing here imports torch before a command runs."""

from __future__ import annotations

from poise.cli.app import main

__all__ = ["main"]
