"""The decimal notations of whole numbers between two bounds, as a regex tree."""

from __future__ import annotations

from stolon.constrained.regex_ast import EMPTY, Chars, Choice, Node, Repeat, Sequence, literal
from stolon.constrained.regex_parser import parse_regex

__all__ = ["integers"]

_ALL = parse_regex("-?(?:0|[1-9][0-9]*)")


def integers(low: int | None, high: int | None) -> Node:
    """Notations without leading zeros of `low` to `high`, inclusive; None is no bound. Of zero there is one
    notation, but ``-0`` is another where nothing is bounded."""
    if low is None and high is None:
        return _ALL
    options: list[Node] = []
    if low is None or low < 0:
        # Mirrored: the numbers below zero by their distance from it.
        nearest = 1 if high is None or high >= 0 else -high
        farthest = None if low is None else -low
        options.append(Sequence((literal("-"), _natural(nearest, farthest))))
    if high is None or high >= 0:
        options.append(_natural(max(low or 0, 0), high))
    return Choice(tuple(options))


def _natural(low: int, high: int | None) -> Node:
    """Notations of `low` to `high`, both at least 0."""
    options: list[Node] = []
    digits = len(str(low))
    last = digits if high is None else len(str(high))
    for length in range(digits, last + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        end = 10**length - 1 if high is None else min(high, 10**length - 1)
        if first <= end:
            options.append(_same_length(str(first), str(end)))
    if high is None:
        options.append(Sequence((_digit("1", "9"), Repeat(_digit("0", "9"), digits, None))))
    return Choice(tuple(options))


def _same_length(low: str, high: str) -> Node:
    """Digit strings between two of one length."""
    if not low:
        return EMPTY
    if low == "0" * len(low) and high == "9" * len(high):
        return Repeat(_digit("0", "9"), len(low), len(low))
    if low[0] == high[0]:
        return Sequence((_digit(low[0], low[0]), _same_length(low[1:], high[1:])))
    rest = len(low) - 1
    options: list[Node] = []
    first, last = low[0], high[0]
    if low[1:] != "0" * rest:
        options.append(Sequence((_digit(first, first), _same_length(low[1:], "9" * rest))))
        first = chr(ord(first) + 1)
    above: list[Node] = []
    if high[1:] != "9" * rest:
        above.append(Sequence((_digit(last, last), _same_length("0" * rest, high[1:]))))
        last = chr(ord(last) - 1)
    if first <= last:
        middle = Repeat(_digit("0", "9"), rest, rest)
        options.append(Sequence((_digit(first, last), middle)))
    return Choice((*options, *above))


def _digit(low: str, high: str) -> Node:
    return Chars(((ord(low), ord(high)),))
