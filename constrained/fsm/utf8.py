"""Sets of characters as small automata over the bytes of their UTF-8 forms."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from stolon.constrained.regex_build import Ranges

__all__ = ["Edge", "Graph", "class_graph"]

Edge = tuple[int, int, int]
"""First byte, last byte, node that follows."""

Graph = tuple[tuple[tuple[Edge, ...], bool], ...]
"""Nodes, edges and whether it is an end, each after those it leads to; the root is the last."""

# Code points by the length of their UTF-8 form.
_LENGTHS = ((0x00, 0x7F, 1), (0x80, 0x7FF, 2), (0x800, 0xFFFF, 3), (0x10000, 0x10FFFF, 4))

_Bytes = tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=256)
def class_graph(ranges: Ranges) -> Graph:
    """The smallest automaton of one character of a set that is not empty."""
    nodes: dict[tuple[tuple[Edge, ...], bool], int] = {((), True): 0}
    _build([s for low, high in ranges for s in _sequences(low, high)], 0, nodes)
    return tuple(nodes)


def _sequences(low: int, high: int) -> Iterator[_Bytes]:
    """Byte ranges, one after the other, that spell exactly the code points from low to high."""
    for first, last, length in _LENGTHS:
        a, b = max(low, first), min(high, last)
        if a <= b:
            yield from _split(a, b, length)


def _split(low: int, high: int, length: int) -> Iterator[_Bytes]:
    if low >> 6 == high >> 6:
        # Most ranges: one last byte or a few.
        yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))
        return
    for tail in range(1, length):
        # All but the last `tail` bytes must be the same, or the tails be complete.
        mask = (1 << 6 * tail) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                yield from _split(low, low | mask, length)
                yield from _split((low | mask) + 1, high, length)
                return
            if high & mask != mask:
                yield from _split(low, (high & ~mask) - 1, length)
                yield from _split(high & ~mask, high, length)
                return
    yield tuple(zip(chr(low).encode(), chr(high).encode(), strict=True))


def _build(
    sequences: list[_Bytes], at: int, nodes: dict[tuple[tuple[Edge, ...], bool], int]
) -> int:
    """The node of sequences that agree before `at`. Ranges at `at` are equal or apart."""
    if len(sequences[0]) == at:
        return 0
    groups: dict[tuple[int, int], list[_Bytes]] = {}
    for sequence in sequences:
        groups.setdefault(sequence[at], []).append(sequence)
    edges: list[Edge] = []
    for (low, high), members in groups.items():
        to = _build(members, at + 1, nodes)
        if edges and edges[-1][1] + 1 == low and edges[-1][2] == to:
            edges[-1] = (edges[-1][0], high, to)
        else:
            edges.append((low, high, to))
    return nodes.setdefault((tuple(edges), False), len(nodes))
