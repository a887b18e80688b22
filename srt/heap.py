"""Memory of the process: pages that were freed, and the collector that looks for what could be."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def return_freed_memory() -> None:
    """Ask glibc to give free pages back; does nothing elsewhere.

    Loading a model, and steps of many rows, free large pieces that the allocator keeps for itself: about
    a tenth of what the process holds.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def settle_heap() -> None:
    """Collect cycles once, and leave what is there now out of every later collection.

    For a process that serves: modules, weights and vocabularies stay until it ends, and looking through them
    holds up the engine's loop for a tenth of a second.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def no_collection() -> Iterator[None]:
    """Let the cyclic collector rest in this process.

    Building a vocabulary makes hundreds of thousands of objects that all stay; looking through them for
    cycles, again and again, takes a third of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
