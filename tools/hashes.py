"""Writes constraints-hashes.txt: the versions of constraints.txt with the SHA-256 of their files.

    python tools/hashes.py            # asks pip's configured index; several GB are read, nothing is installed
    python tools/hashes.py report.json    # from a report that pip has written

pip then refuses any other file: ``pip install --require-hashes -r constraints-hashes.txt``, and after it
``pip install --no-deps -e .``. The file is for CPython 3.11 on Linux x86-64, whose wheels differ from those of others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "constraints-hashes.txt"
OF_TORCH = ("nvidia-", "cuda-", "triton")  # installed with torch on Linux only, so that constraints.txt leaves them out


def pins() -> list[str]:
    """Return all versions that are installed together."""
    lines = [line.strip() for line in (ROOT / "constraints.txt").read_text().splitlines()]
    installed = {package.metadata["Name"]: package.version for package in metadata.distributions()}
    extra = [f"{name}=={version}" for name, version in installed.items() if name.lower().startswith(OF_TORCH)]
    return sorted({line for line in lines if line and not line.startswith("#")} | set(extra), key=str.lower)


def hashes(requirements: list[str]) -> dict[str, str]:
    """Return the SHA-256 of the file that pip would install for each requirement."""
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "asked.txt", Path(folder) / "report.json"
        asked.write_text("\n".join(requirements))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed"]
        subprocess.run([*command, "--report", str(report), "-r", str(asked)], check=True)
        return read_report(report)


def read_report(report: Path) -> dict[str, str]:
    """Return the SHA-256 by name and version from pip's report; addresses are left out."""
    rows = json.loads(report.read_text("utf-8"))["install"]
    return {
        f"{row['metadata']['name'].lower()}=={row['metadata']['version']}": row["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for row in rows
    }


def main() -> None:
    found = read_report(Path(sys.argv[1])) if len(sys.argv) > 1 else hashes(pins())
    head = "# Made by tools/hashes.py for CPython 3.11 on Linux x86-64; see there how to use it."
    lines = [f"{name} \\\n    --hash=sha256:{digest}" for name, digest in sorted(found.items())]
    TARGET.write_text("\n".join([head, *lines, ""]))
    print(f"{TARGET.name}: {len(found)} files")


if __name__ == "__main__":
    main()
