"""Programs of one generation, for tests that need any program."""

from __future__ import annotations

import stolon as sl


@sl.function
def profile(s, note, scale=1):
    s += f"{note}:" + sl.gen("a")
    return scale


@sl.function
def scored(s, **arguments):
    s += "once upon" + sl.gen("x", max_tokens=4, **arguments)
