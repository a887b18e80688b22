"""Memory that was freed but not given back to the system."""

from __future__ import annotations

import ctypes
import sys


def return_freed_memory() -> None:
    """Ask glibc to give free pages back; does nothing elsewhere.

    Loading a model, and steps of many rows, free large pieces that the allocator keeps for itself: about
    a tenth of what the process holds.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
