"""Short turns of the interpreter lock, so that a long piece of Python does not hold up the engine."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["short_turns"]

TURN = 0.0005
"""Seconds after which a thread lets others run. Python's own 5 ms is as long as a step of a small model."""

_lock = threading.Lock()
_inside = 0
_usual = 0.0
_collecting = False


@contextmanager
def short_turns() -> Iterator[None]:
    """Within it, in any thread, running Python code gives way after 0.5 ms.

    The cyclic collector rests meanwhile: it does not give way, and where many objects are made that
    all stay it comes often, for tens of milliseconds. Both settings are the process's.
    """
    global _inside, _usual, _collecting
    with _lock:
        if _inside == 0:
            _usual, _collecting = sys.getswitchinterval(), gc.isenabled()
            sys.setswitchinterval(min(_usual, TURN))
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                sys.setswitchinterval(_usual)
                if _collecting:
                    gc.enable()
