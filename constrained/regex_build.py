"""Building regex trees: sets of characters, and constructors that simplify as they build."""

from __future__ import annotations

from collections.abc import Iterable

from stolon.constrained.regex_ast import (
    ANY,
    EMPTY,
    NOTHING,
    SURROGATES,
    Chars,
    Choice,
    Node,
    Repeat,
    Sequence,
)

__all__ = [
    "Ranges",
    "chars",
    "choice",
    "complement",
    "difference",
    "intersect",
    "nullable",
    "repeat",
    "sequence",
    "union",
]

Ranges = tuple[tuple[int, int], ...]
"""Code points: inclusive ranges, ascending and apart."""

_LAST = 0x10FFFF


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """All code points of the ranges given, in any order, without surrogates."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(r for ranges in sets for r in ranges):
        if out and low <= out[-1][1] + 1:
            if high > out[-1][1]:
                out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return _without_surrogates(out)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Ranges:
    first, last = SURROGATES
    out = []
    for low, high in ranges:
        if high < first or low > last:
            out.append((low, high))
            continue
        if low < first:
            out.append((low, first - 1))
        if high > last:
            out.append((last + 1, high))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """The code points that have a UTF-8 form and are not in `ranges`."""
    out = []
    at = 0
    for low, high in ranges:
        if low > at:
            out.append((at, low - 1))
        at = high + 1
    if at <= _LAST:
        out.append((at, _LAST))
    return _without_surrogates(out)


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """The code points in both."""
    out = []
    i = j = 0
    while i < len(a) and j < len(b):
        low, high = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if low <= high:
            out.append((low, high))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return tuple(out)


def difference(a: Ranges, b: Ranges) -> Ranges:
    """The code points of `a` that are not in `b`."""
    return intersect(a, complement(b))


def chars(ranges: Ranges) -> Node:
    """One character of a set; nothing if the set is empty."""
    if not ranges:
        return NOTHING
    return ANY if ranges == ANY.ranges else Chars(ranges)


def sequence(parts: Iterable[Node]) -> Node:
    """One after the other, flat."""
    out: list[Node] = []
    for part in parts:
        if type(part) is Sequence:
            out.extend(part.parts)
        elif part == NOTHING:
            return NOTHING
        else:
            out.append(part)
    return out[0] if len(out) == 1 else Sequence(tuple(out)) if out else EMPTY


def choice(options: Iterable[Node]) -> Node:
    """Any of the options, flat, single characters joined into one set."""
    out: list[Node] = []
    single: list[tuple[int, int]] = []
    empty = False
    for option in options:
        for node in option.options if type(option) is Choice else (option,):
            if type(node) is Chars:
                single.extend(node.ranges)
            elif type(node) is Sequence and not node.parts:
                empty = True
            else:
                out.append(node)
    if single:
        out.insert(0, chars(union(single)))
    node = out[0] if len(out) == 1 else Choice(tuple(out))
    return repeat(node, 0, 1) if empty else node


def repeat(node: Node, low: int, high: int | None) -> Node:
    """`low` to `high` times; the simplest form of it."""
    if high == 0 or node == EMPTY:
        return EMPTY
    if node == NOTHING:
        return NOTHING if low else EMPTY
    if low == 1 == high:
        return node
    if type(node) is Repeat and node.low <= 1:
        inner = node.high
        if inner is None and (low <= 1 or node.low == 0):
            return Repeat(node.node, min(low, node.low), None)
        if inner == 1 and node.low == 0:
            return repeat(node.node, 0, high)
        if low == 0 and high == 1 and inner is not None:
            return Repeat(node.node, 0, inner)
    return Repeat(node, low, high)


def nullable(node: Node) -> bool:
    """Whether the empty text is one of the node's."""
    if isinstance(node, Chars):
        return False
    if isinstance(node, Sequence):
        return all(map(nullable, node.parts))
    if isinstance(node, Choice):
        return any(map(nullable, node.options))
    return node.low == 0 or nullable(node.node)
