"""Code and shell blocks of the pages, run as printed: the blocks of one page share a namespace, a folder and a shell.

`<!-- skip: next "reason" -->` before a block leaves it out, and `<!-- invisible-code-block: python ... -->` prepares
what a page takes for granted; neither is visible to readers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from unittest import SkipTest

from sybil import Document, Example, Sybil
from sybil.evaluators.skip import Skipper
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

ROOT = Path(__file__).parents[2]
SHOWN = {
    "toml",
    "json",
    "text",
    "yaml",
    "console",
    "http",
    "dockerfile",
    "{csv-table}",
    "{eval-rst}",
}  # blocks that are shown and not run
TIMEOUT = 120


def pages() -> list[Path]:
    """Every page that is written by hand."""
    written = [path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "project"]
    return [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(written)) if path.is_file()]


def run_python(example: Example) -> None:
    """Execute a block in the page's module, then the tests that it defines."""
    name = "page_" + Path(example.path).stem.lower().replace("-", "_")
    module = sys.modules.setdefault(name, ModuleType(name))  # dataclasses look their module up
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    before = set(vars(module))
    exec(compile(source, example.path, "exec", dont_inherit=True), vars(module))
    for test in [value for key, value in vars(module).items() if key.startswith("test_") and key not in before]:
        test()


def run_shell(example: Example) -> None:
    """Run a block in bash; variables that it exports are there in the page's next block."""
    script = f"set -euo pipefail\n[ -f .exported ] && source .exported\n{example.parsed}\nexport -p > .exported"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=TIMEOUT, env=os.environ)
    if done.returncode:
        where = f"{Path(example.path).relative_to(ROOT)}:{example.line}"
        raise AssertionError(f"{where} ended with {done.returncode}:\n{example.parsed}\n{done.stdout}{done.stderr}")


def parse(page: Path) -> Document:
    """Find the blocks of a page."""
    shell = [CodeBlockParser(language, run_shell) for language in ("bash", "sh")]
    return Sybil(parsers=[CodeBlockParser("python", run_python), *shell, SkipParser()]).parse(page)


def run(page: Path) -> Counter[str]:
    """Run a page's blocks in the working directory; how many were run, and how many left out for each reason."""
    outcome: Counter[str] = Counter()
    for example in parse(page).examples():
        try:
            example.evaluate()
        except SkipTest as skipped:
            outcome[str(skipped)] += 1
        else:
            outcome["run"] += not isinstance(example.region.evaluator, Skipper)
    return outcome


def other_languages(page: Path) -> set[str]:
    """The languages of blocks that are neither run nor known to be only shown."""
    document = Document(page.read_text(encoding="utf-8"), str(page))
    lexer = RawFencedCodeBlockLexer(re.compile(r"(?P<language>[^\n]*)\n"))
    return {region.lexemes["language"].strip() for region in lexer(document)} - SHOWN - {"python", "bash", "sh"}


def count() -> Counter[str]:
    """How many blocks are run, and how many are left out for each reason, without running any."""
    outcome: Counter[str] = Counter()
    for page in pages():
        reason = "run"
        for example in parse(page).examples():
            if isinstance(example.region.evaluator, Skipper):
                reason = str(example.parsed[1]).strip('"')
            else:
                outcome[reason] += 1
                reason = "run"
    return outcome


if __name__ == "__main__":
    for reason, number in count().most_common():
        sys.stdout.write(f"{number:4d}  {reason}\n")
