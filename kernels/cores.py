"""How many threads are worth having."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cores() -> int:
    """Physical cores that this process may use: hyper-threads of one core count once, if they are known,
    and a container's share of processor time is kept to."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    cores = set()
    for cpu in usable:
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.add(_read(siblings) or str(cpu))
    return max(1, min(len(cores) or os.cpu_count() or 1, _quota()))


def _quota() -> int:
    """Cores' worth of time that the control group grants (``cpu.max``: microseconds and their period),
    rounded up."""
    quota, _, period = _read(Path("/sys/fs/cgroup/cpu.max")).partition(" ")
    if quota.isdecimal() and period.isdecimal() and int(period) > 0:
        return math.ceil(int(quota) / int(period))
    return 1 << 30


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
