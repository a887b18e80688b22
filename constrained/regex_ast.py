"""Regular expressions as trees over Unicode code points, free of anchors and flags.

A tree stands for a set of whole texts. Parsers resolve everything else: flags become wider classes,
a search becomes a whole text with anything around it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = [
    "ANY",
    "EMPTY",
    "NOTHING",
    "Chars",
    "Choice",
    "Literal",
    "Node",
    "Repeat",
    "Sequence",
    "literal",
]

SURROGATES = (0xD800, 0xDFFF)
"""Never in a class: they have no UTF-8 form."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a class: code point ranges, inclusive, ascending, apart, without surrogates."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other; no parts match the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Literal(Sequence):
    """The characters of one text that is not empty; its parts are shared with other texts."""

    text: str


@dataclass(frozen=True, slots=True)
class Choice:
    """Any of the options; no options match nothing."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`low` to `high` times, without an upper end where `high` is None."""

    node: Node
    low: int
    high: int | None


Node = Chars | Sequence | Choice | Repeat

EMPTY = Sequence(())
NOTHING = Choice(())
ANY = Chars(((0, 0xD7FF), (0xE000, 0x10FFFF)))


def literal(text: str) -> Node:
    """Exactly this text."""
    return Literal(tuple(map(_character, text)), text) if text else EMPTY


@lru_cache(maxsize=1024)
def _character(char: str) -> Chars:
    return Chars(((ord(char), ord(char)),))
