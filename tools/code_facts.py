"""Counts what is written in a checkout: code lines, docstrings, complex functions, private names in tests.

python tools/code_facts.py [FOLDER ...]
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_BRANCHES = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.match_case)
_OTHERS = {"_repr_html_", "_exit", "_replace", "_fields", "_asdict"}  # names of notebooks, Python and named tuples


def lines(text: str) -> tuple[int, int]:
    """Return the number of lines with code, and of those of docstrings, also below fields."""
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        for part in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = part.value if isinstance(part, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs |= {*range(part.lineno, (part.end_lineno or part.lineno) + 1)}
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code |= {*range(token.start[0], token.end[0] + 1)}
    return len(code - docs), len(docs)


def complexities(text: str) -> list[int]:
    """Return the complexity of each function: its branches, boolean operands and comprehensions."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [1 + sum(map(_branches, ast.walk(function))) for function in functions]


def _branches(node: ast.AST) -> int:
    operands = len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
    conditions = len(node.ifs) if isinstance(node, ast.comprehension) else 0
    return isinstance(node, _BRANCHES) + operands + conditions


def private_names(text: str) -> Iterator[str]:
    """Yield the private names of other modules and objects that a file uses."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            names = [] if own else [node.attr]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []
        yield from (name for name in names if name[0] == "_" and name[:2] != "__" and name not in _OTHERS)


def main() -> None:
    for folder in map(Path, sys.argv[1:] or ["."]):
        src, tests = (
            [file.read_text("utf-8") for file in sorted((folder / part).rglob("*.py"))] for part in ("src", "tests")
        )
        for name, texts in (("src", src), ("tests", tests)):
            code, docs = (sum(counts) for counts in zip(*map(lines, texts), strict=True))
            print(f"{folder}/{name}: {len(texts)} files, {code:,} lines of code, {docs:,} of docstrings")
        found = [number for text in src for number in complexities(text)]
        shown = ", ".join(f"{sum(number > most for number in found)} above {most}" for most in (10, 12, 15))
        print(f"{folder}: {len(found):,} functions, complexity {shown}")
        print(f"{folder}: {sum(any(private_names(text)) for text in tests)} files of tests use private names")


if __name__ == "__main__":
    main()
