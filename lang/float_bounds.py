"""Bounds of floats in text, which says numbers that are no floats."""

from __future__ import annotations

import math
from typing import Any

_LARGEST = 1e308  # what is nearer to the largest float is not worth the digits
_SMALLEST = 1e-30  # nor what is nearer to an excluded zero


def bound_floats(made: dict[str, Any], *, finite: bool) -> dict[str, Any]:
    """The schema of a float with bounds that no text within them is read beyond.

    A grammar compares the number that is written, pydantic the float that is nearest to it:
    0.99999999999999999999 is below 1, and reads as 1.0. So an excluded bound gives way to the float next to
    it. Rounding never swaps two numbers and moves no float, so what is written on the inner side of a float
    reads as that float or as one further inside. (So do the digits of its `repr`: they read as it.)
    """
    for name, inwards in (("Minimum", math.inf), ("Maximum", -math.inf)):
        excluded = made.pop(f"exclusive{name}", None)
        if excluded is not None:
            # pydantic compares with a float, too, when the bound is an int.
            nearest = math.nextafter(float(excluded), inwards)
            inside = nearest if excluded else math.copysign(_SMALLEST, inwards)
            innermost = max if inwards > 0 else min
            made[name.lower()] = innermost(inside, made.get(name.lower(), inside))
    if finite and "multipleOf" not in made:  # such a number has no exponent anyway
        made.setdefault("minimum", -_LARGEST)
        made.setdefault("maximum", _LARGEST)
    return made
