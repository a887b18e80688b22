"""What the numbers are measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, memory in bytes, system and Python."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": len(core_ids()),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }


def core_ids() -> list[int]:
    """One processor number for each physical core that this process may use; hyper-threads of one
    core count once, if known."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set[int]()
    cores: dict[str, int] = {}
    for cpu in sorted(usable):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        text = siblings.read_text(encoding="ascii").strip() if siblings.exists() else str(cpu)
        cores.setdefault(text, cpu)
    return list(cores.values()) or list(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """How many physical cores this process may use."""
    return len(core_ids())
