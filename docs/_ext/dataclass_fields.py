"""The comments beside the fields of a dataclass, in its documentation: each field is described once, in the source."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from sphinx.application import Sphinx

FIELD = re.compile(r"^    (\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$")


def add_fields(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Append a list of the fields to the docstring of a dataclass."""
    if what not in ("class", "exception") or not dataclasses.is_dataclass(obj):
        return
    if any(line.strip() in ("Attributes:", "Args:") for line in lines):  # described there
        return
    found = []
    own = vars(obj).get("__annotations__", {})
    for line in inspect.getsource(obj).splitlines():
        if (match := FIELD.match(line)) and match[1] in own and not match[1].startswith("_"):
            field, kind, default, comment = match.groups()
            text = f"- ``{field}`` (``{kind}``" + (f", default ``{default}``)" if default else ")")
            found.append(f"{text}: {comment}" if comment else text)
    if found:
        lines += ["", ".. rubric:: Fields", "", *found, ""]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; it runs before napoleon reads the docstring."""
    app.connect("autodoc-process-docstring", add_fields, priority=400)
    return {"parallel_read_safe": True}
