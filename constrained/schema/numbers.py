"""Sets of numbers: an interval, what they must be a multiple of, and what they must not."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

__all__ = [
    "MAX_BOUNDED",
    "MAX_REMAINDERS",
    "Numbers",
    "all_but",
    "both",
    "digits_of",
    "is_fine",
    "lcm",
    "remainders",
]

MAX_LISTED = 256
FINE = 10**14
"""The least bound, but for its point, of more digits than a double tells apart everywhere."""
MAX_STEP = 1_000_000
MAX_BOUNDED = 10_000
"""The largest divisor beside bounds, whose digits multiply what is followed; zeros at its end, too."""
MAX_REMAINDERS = 50_000
"""What one lexer may follow: 100,000 take it a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers within bounds, multiples of `step` (1: integers), of none of `indivisible` (1: fractions).

    A missing bound is None; an open one excludes its end.
    """

    low: Fraction | None = None
    high: Fraction | None = None
    low_open: bool = False
    high_open: bool = False
    step: Fraction | None = None
    indivisible: frozenset[Fraction] = frozenset()

    def simplified(self) -> list[Numbers]:
        """The same set, with bounds on the lattice of `step`; empty lists and short ones spelled out."""
        indivisible = self.indivisible
        if self.step is not None:
            indivisible = frozenset(lcm(n, self.step) for n in indivisible)
            if self.step in indivisible:
                return []
        low, high = self.low, self.high
        low_open, high_open = self.low_open, self.high_open
        if self.step is not None:
            if low is not None:
                ratio = low / self.step
                low = self.step * (
                    ratio + 1 if low_open and ratio.denominator == 1 else math.ceil(ratio)
                )
                low_open = False
            if high is not None:
                ratio = high / self.step
                high = self.step * (
                    ratio - 1 if high_open and ratio.denominator == 1 else math.floor(ratio)
                )
                high_open = False
        if low is not None and high is not None:
            if low > high or (low == high and (low_open or high_open)):
                return []
            if low == high:
                fits = all((low / n).denominator != 1 for n in self.indivisible)
                return [Numbers(low=low, high=low)] if fits else []
            if self.step is not None and self.indivisible:
                count = (high - low) / self.step
                if count <= MAX_LISTED:
                    points = [low + self.step * i for i in range(int(count) + 1)]
                    return [
                        Numbers(low=p, high=p)
                        for p in points
                        if all((p / n).denominator != 1 for n in self.indivisible)
                    ]
        return [
            replace(
                self,
                low=low,
                high=high,
                low_open=low_open,
                high_open=high_open,
                indivisible=indivisible,
            )
        ]

    def complement(self) -> Iterator[Numbers]:
        """Sets that together hold every other number."""
        if self.low is not None:
            yield Numbers(high=self.low, high_open=not self.low_open)
        if self.high is not None:
            yield Numbers(low=self.high, low_open=not self.high_open)
        inside = Numbers(
            low=self.low, high=self.high, low_open=self.low_open, high_open=self.high_open
        )
        if self.step is not None:
            yield replace(inside, indivisible=frozenset((self.step,)))
        for n in self.indivisible:
            yield replace(inside, step=n)

    @property
    def point(self) -> Fraction | None:
        """The only member of a simplified set of one."""
        return self.low if self.low is not None and self.low == self.high else None


def both(a: Numbers, b: Numbers) -> list[Numbers]:
    """What is in both sets, simplified."""
    low, low_open = a.low, a.low_open
    if b.low is not None and (low is None or (b.low, b.low_open) > (low, low_open)):
        low, low_open = b.low, b.low_open
    high, high_open = a.high, a.high_open
    if b.high is not None and (high is None or (b.high, not b.high_open) < (high, not high_open)):
        high, high_open = b.high, b.high_open
    step = a.step if b.step is None else b.step if a.step is None else lcm(a.step, b.step)
    return Numbers(
        low=low,
        high=high,
        low_open=low_open,
        high_open=high_open,
        step=step,
        indivisible=a.indivisible | b.indivisible,
    ).simplified()


def all_but(points: list[Fraction]) -> list[Numbers]:
    """Every number except some."""
    ends: list[Fraction | None] = [None, *sorted(set(points)), None]
    return [
        Numbers(low=a, high=b, low_open=a is not None, high_open=b is not None)
        for a, b in itertools.pairwise(ends)
    ]


def remainders(step: Fraction) -> int:
    """About how many remainders a lexer tells apart to find the decimal notations of multiples.

    Zeros at the end of a divisor cost little. More than `MAX_REMAINDERS` for divisors above a million.
    """
    digits = digits_of(step)
    if digits > MAX_STEP:
        return digits
    return min(digits, 25 * int(str(digits).rstrip("0")))


def is_fine(bound: Fraction) -> bool:
    """Whether llguidance's own ranges, which are of doubles, may take a bound for another beside it."""
    return bound.denominator != 1 and digits_of(abs(bound)) >= FINE


def digits_of(step: Fraction) -> int:
    """A divisor without its point: 25 of 2.5."""
    while step.denominator != 1:
        step *= 10
    return step.numerator


def lcm(a: Fraction, b: Fraction) -> Fraction:
    """The smallest common multiple."""
    return Fraction(
        math.lcm(a.numerator * b.denominator, b.numerator * a.denominator),
        a.denominator * b.denominator,
    )
