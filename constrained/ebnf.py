"""EBNF grammars of which no rule comes back to itself, as trees."""

from __future__ import annotations

from stolon.constrained.ebnf_parser import Expression, Ref, Row, Terminal, Times, parse_ebnf
from stolon.constrained.regex_ast import Chars, Node, literal
from stolon.constrained.regex_build import choice, repeat, sequence

__all__ = ["NoTreeError", "Trees", "ebnf_tree"]

MAX_SIZE = 100_000
MAX_HEIGHT = 200


def ebnf_tree(text: str) -> Node | None:
    """The texts of a grammar; None if a rule comes back to itself, or written out it would be too large.

    Raises:
        GrammarError: it can't be read.
    """
    try:
        return Trees(parse_ebnf(text)).rule("root", 0)[0]
    except NoTreeError:
        return None


class NoTreeError(Exception):
    """A rule comes back to itself, or the tree would be too large."""


_Sized = tuple[Node, int, int]
"""A tree, its nodes with each occurrence counted, and its height."""


class Trees:
    """Expressions of a grammar as trees."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._known: dict[str, _Sized | None] = {}  # None while it is being written out

    def rule(self, name: str, depth: int) -> _Sized:
        if name not in self._known:
            self._known[name] = None
            self._known[name] = self.sized(self._rules[name], depth)
        known = self._known[name]
        if known is None:
            raise NoTreeError
        return known

    def sized(self, expression: Expression, depth: int = 0) -> _Sized:
        if depth > MAX_HEIGHT:
            raise NoTreeError
        if isinstance(expression, str):
            return literal(expression), len(expression), 1
        if isinstance(expression, Chars):
            return expression, 1, 1
        if isinstance(expression, Terminal):
            return expression.tree, 1, 1
        if isinstance(expression, Ref):
            return self.rule(expression.name, depth + 1)
        if isinstance(expression, Times):
            node, size, height = self.sized(expression.item, depth + 1)
            node = repeat(node, expression.low, expression.high)
        else:
            row = isinstance(expression, Row)
            inner = expression.parts if isinstance(expression, Row) else expression.options
            parts = [self.sized(part, depth + 1) for part in inner]
            node = (sequence if row else choice)([part[0] for part in parts])
            size = sum(part[1] for part in parts)
            height = max((part[2] for part in parts), default=0)
        if size >= MAX_SIZE or height >= MAX_HEIGHT:
            raise NoTreeError
        return node, size + 1, height + 1
