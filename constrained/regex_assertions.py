"""Assertions (``^ $ \\b`` …): the empty text, between certain kinds of characters.

What an assertion asks depends on the kind of the character before it and of the one after it, so it is
the relation of kinds between which it holds. A set of kinds is a number with a bit for each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from stolon.constrained.regex_ast import Choice, Node, Repeat, Sequence
from stolon.constrained.regex_build import Ranges, complement, difference
from stolon.constrained.regex_classes import WORD, unicode_word

__all__ = [
    "ALL",
    "ANYWHERE",
    "EDGE",
    "INNER",
    "Assertion",
    "N",
    "Relation",
    "asserts",
    "kind_ranges",
    "relation",
    "sides",
]

KINDS = ("edge", "newline", "return", "ascii word", "other word", "other")
N = len(KINDS)
EDGE = 1
ALL = (1 << N) - 1
INNER = ALL & ~EDGE
ANYWHERE = (1 << N * N) - 1

Relation = int
"""Pairs of kinds, before and after: bit `before * N + after`."""


@dataclass(frozen=True, slots=True)
class Assertion(Sequence):
    """The empty text, but only between the kinds of a relation. Never in a finished tree."""

    relation: Relation = ANYWHERE


def relation(holds: Callable[[str, str], bool]) -> Relation:
    """The relation of a condition on the kinds before and after."""
    bits = 0
    for before, a in enumerate(KINDS):
        for after, b in enumerate(KINDS):
            bits |= holds(a, b) << before * N + after
    return bits


def sides(pairs: Relation, *, before: bool) -> dict[int, int]:
    """Kinds on one side (`before` or after), by the kinds that the pairs have on the other."""
    out: dict[int, int] = {}
    for kind in range(1, N):
        if before:
            other = pairs >> kind * N & ALL
        else:
            other = sum(1 << k for k in range(N) if pairs >> k * N + kind & 1)
        if other:
            out[other] = out.get(other, 0) | 1 << kind
    return out


@functools.cache
def kind_ranges() -> tuple[Ranges, ...]:
    """The characters of each of `KINDS`."""
    word = unicode_word()
    newlines = ((10, 10), (13, 13))
    rest = difference(complement(word), newlines)
    return (), newlines[:1], newlines[1:], WORD, difference(word, WORD), rest


def asserts(node: Node) -> bool:
    """Whether a tree holds an assertion."""
    if isinstance(node, Assertion):
        return True
    if isinstance(node, Sequence):
        return any(map(asserts, node.parts))
    if isinstance(node, Choice):
        return any(map(asserts, node.options))
    return isinstance(node, Repeat) and asserts(node.node)
