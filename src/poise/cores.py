"""The number of cores that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of processor time in each period
OLD_QUOTA = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")


def available_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _quota() or cores))


def _quota() -> int | None:
    try:
        text = QUOTA.read_text() if QUOTA.is_file() else " ".join(file.read_text().strip() for file in OLD_QUOTA)
        quota, period = (float(part) for part in text.split())
        return math.ceil(quota / period) if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # there is none ("max"), or this is not Linux
        return None
