"""Template words and class names become token ids, and the template's words become the starting prompt."""

from __future__ import annotations

from poise.prompts.template import DEFAULT_TEMPLATE, Template
from poise.prompts.tokens import check_labels, init_prompt, tokenise

__all__ = ["DEFAULT_TEMPLATE", "Template", "check_labels", "init_prompt", "tokenise"]
