"""Templates and labels as token ids, and fitted prompts on disk."""

from __future__ import annotations

from poise.prompts.labels import check_labels
from poise.prompts.template import DEFAULT_TEMPLATE, Template
from poise.prompts.tokens import init_prompt, tokenise

__all__ = ["DEFAULT_TEMPLATE", "Template", "check_labels", "init_prompt", "tokenise"]
