"""How deep programs may run inside one another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stolon.errors import InvalidRequest
from stolon.lang.location import program_line

MAX_NESTING = 64
"""Runs and tools inside one another; what runs itself without end is stopped before it fills the machine."""

_depth: ContextVar[int] = ContextVar("stolon_depth", default=0)


class TooDeep(InvalidRequest):
    """More than `MAX_NESTING` inside one another. No model is told: it ends all of them."""


@contextmanager
def deeper(what: str) -> Iterator[None]:
    """Around what may run programs, itself among them. Raises TooDeep."""
    depth = _depth.get() + 1
    if depth > MAX_NESTING:
        raise TooDeep(
            f"{what} inside {MAX_NESTING} other runs",
            where=program_line(),
            hint="does a program run itself without end?",
        )
    token = _depth.set(depth)
    try:
        yield
    finally:
        _depth.reset(token)
