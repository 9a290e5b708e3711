"""What other processes use, read from /proc: on Linux only, elsewhere it is not a number."""

from __future__ import annotations

import os
import re
from pathlib import Path


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process so far, which other programs on the machine hardly change."""
    stat = Path(f"/proc/{pid}/stat")
    ticks = stat.read_text().rpartition(")")[2].split()[11:13] if stat.exists() else ["nan"]
    return sum(map(float, ticks)) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the memory of a process in MB."""
    status = Path(f"/proc/{pid}/status")
    return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024 if status.exists() else float("nan")
