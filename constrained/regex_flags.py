"""The two dialects of regular expressions, and the flags that change one as it is read."""

from __future__ import annotations

from dataclasses import dataclass

from stolon.constrained.regex_assertions import Assertion, relation
from stolon.constrained.regex_ast import Node
from stolon.constrained.regex_build import Ranges, chars, complement, intersect
from stolon.constrained.regex_classes import (
    ASCII,
    DIGIT,
    ECMA_NEWLINES,
    ECMA_SPACE,
    SPACE,
    WORD,
    fold_case,
    unicode_digit,
    unicode_word,
)

__all__ = ["Flags"]

_WORDS = ("ascii word", "other word")


@dataclass(frozen=True, slots=True)
class Flags:
    """How text is read at one place of a pattern.

    Attributes:
        ecma: ECMAScript's syntax and classes (JSON Schema), not ours.
        ignore_case: ``i``.
        multi_line: ``m``: ``^`` and ``$`` match at lines.
        dot_all: ``s``: ``.`` matches a line feed.
        verbose: ``x``: white space and comments mean nothing.
        unicode: ``u``: ``\\w``, ``\\d``, ``\\s`` and ``\\b`` go beyond ASCII.
        crlf: ``R``: a carriage return ends a line too.
    """

    ecma: bool = False
    ignore_case: bool = False
    multi_line: bool = False
    dot_all: bool = False
    verbose: bool = False
    unicode: bool = True
    crlf: bool = False

    def cased(self, ranges: Ranges) -> Ranges:
        if not self.ignore_case:
            return ranges
        if self.unicode:
            return fold_case(ranges)
        return intersect(fold_case(intersect(ranges, ASCII)), ASCII) if ranges else ranges

    def dot(self) -> Node:
        if self.dot_all:
            return chars(complement(()))
        if self.ecma:
            return chars(complement(ECMA_NEWLINES))
        return chars(complement(((10, 10), (13, 13)) if self.crlf else ((10, 10),)))

    def perl(self, letter: str) -> Ranges | None:
        """The set of ``\\d \\w \\s \\D \\W \\S``; None for another letter."""
        match letter.lower():
            case "d":
                ranges = unicode_digit() if self.unicode and not self.ecma else DIGIT
            case "w":
                ranges = unicode_word() if self.unicode and not self.ecma else WORD
            case "s" if self.ecma:
                ranges = ECMA_SPACE
            case "s":
                ranges = SPACE if self.unicode else ((9, 13), (32, 32))
            case _:
                return None
        return complement(ranges) if letter.isupper() else ranges

    def line_start(self) -> Assertion:
        if not self.multi_line:
            return Assertion((), relation(lambda a, b: a == "edge"))
        if self.crlf:
            return Assertion(
                (),
                relation(
                    lambda a, b: a in ("edge", "newline") or (a == "return" and b != "newline")
                ),
            )
        return Assertion((), relation(lambda a, b: a in ("edge", "newline")))

    def line_end(self) -> Assertion:
        if not self.multi_line:
            return Assertion((), relation(lambda a, b: b == "edge"))
        if self.crlf:
            return Assertion(
                (),
                relation(
                    lambda a, b: b in ("edge", "return") or (b == "newline" and a != "return")
                ),
            )
        return Assertion((), relation(lambda a, b: b in ("edge", "newline")))

    def word_boundary(self, kind: str) -> Assertion | None:
        """``\\b``, ``\\B`` and ``\\b{start}`` …, named by what follows the backslash."""
        word = _WORDS if self.unicode and not self.ecma else _WORDS[:1]
        match kind:
            case "b":
                return Assertion((), relation(lambda a, b: (a in word) != (b in word)))
            case "B":
                return Assertion((), relation(lambda a, b: (a in word) == (b in word)))
            case "b{start}" | "<":
                return Assertion((), relation(lambda a, b: a not in word and b in word))
            case "b{end}" | ">":
                return Assertion((), relation(lambda a, b: a in word and b not in word))
            case "b{start-half}":
                return Assertion((), relation(lambda a, b: a not in word))
            case "b{end-half}":
                return Assertion((), relation(lambda a, b: b not in word))
        return None
