"""EBNF grammars of which no rule comes back to itself, as trees."""

from __future__ import annotations

from stolon.constrained.ebnf_parser import Expression, Ref, Row, Times, parse_ebnf
from stolon.constrained.regex_ast import Chars, Node, literal
from stolon.constrained.regex_build import choice, repeat, sequence

__all__ = ["ebnf_tree"]

MAX_SIZE = 100_000
MAX_HEIGHT = 200


def ebnf_tree(text: str) -> Node | None:
    """The texts of a grammar; None if a rule comes back to itself, or written out it would be too large.

    Raises:
        GrammarError: it can't be read.
    """
    try:
        return _Trees(parse_ebnf(text)).rule("root", 0)[0]
    except _NoTreeError:
        return None


class _NoTreeError(Exception):
    pass


_Sized = tuple[Node, int, int]
"""A tree, its nodes with each occurrence counted, and its height."""


class _Trees:
    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._known: dict[str, _Sized | None] = {}  # None while it is being written out

    def rule(self, name: str, depth: int) -> _Sized:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self._sized(self._rules[name], depth)
        known = self._known[name]
        if known is None:
            raise _NoTreeError
        return known

    def _sized(self, expression: Expression, depth: int) -> _Sized:
        if depth > MAX_HEIGHT:
            raise _NoTreeError
        if isinstance(expression, str):
            return literal(expression), len(expression), 1
        if isinstance(expression, Chars):
            return expression, 1, 1
        if isinstance(expression, Ref):
            return self.rule(expression.name, depth + 1)
        if isinstance(expression, Times):
            node, size, height = self._sized(expression.item, depth + 1)
            node = repeat(node, expression.low, expression.high)
        else:
            row = isinstance(expression, Row)
            inner = expression.parts if isinstance(expression, Row) else expression.options
            parts = [self._sized(part, depth + 1) for part in inner]
            node = (sequence if row else choice)([part[0] for part in parts])
            size = sum(part[1] for part in parts)
            height = max((part[2] for part in parts), default=0)
        if size >= MAX_SIZE or height >= MAX_HEIGHT:
            raise _NoTreeError
        return node, size + 1, height + 1
