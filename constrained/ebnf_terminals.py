"""What of an EBNF grammar may be one terminal: llguidance follows it far faster than its characters.

It takes the longest terminal, so that none of the texts of one may begin another: not of its own texts, and
not of any other terminal's, which is certain where their first characters differ.
"""

from __future__ import annotations

from collections.abc import Iterator

from stolon.constrained.ebnf import NoTreeError, Trees
from stolon.constrained.ebnf_parser import Expression, Options, Ref, Row, Terminal, Times
from stolon.constrained.regex_ast import Chars
from stolon.constrained.regex_build import Ranges, intersect, union

__all__ = ["leaves", "with_terminals"]

MAX_SIZE = 500
MAX_ROW = 8
MAX_ROUNDS = 8
MAX_TRIES = 2_000
MAX_RULES = 1_000


def with_terminals(rules: dict[str, Expression]) -> dict[str, Expression]:
    """The rules that ``root`` reaches, with terminals in them."""
    banned: set[Terminal] = set()
    for _ in range(MAX_ROUNDS if len(rules) <= MAX_RULES else 0):
        found = _Finder(rules, banned).reached()
        clashing = _clashing(found)
        if not clashing:
            return found
        banned |= clashing
    return _Finder(rules, None).reached()


def leaves(root: Expression) -> Iterator[str | Chars | Ref | Terminal]:
    """What an expression is made of."""
    todo = [root]
    while todo:
        expression = todo.pop()
        if isinstance(expression, Row):
            todo.extend(expression.parts)
        elif isinstance(expression, Options):
            todo.extend(expression.options)
        elif isinstance(expression, Times):
            todo.append(expression.item)
        else:
            yield expression


def _clashing(rules: dict[str, Expression]) -> set[Terminal]:
    every = [leaf for expression in rules.values() for leaf in leaves(expression)]
    terminals = {leaf for leaf in every if isinstance(leaf, Terminal)}
    # Each character of a literal counts: it may be spelled out.
    others = union(
        *(leaf.ranges for leaf in every if isinstance(leaf, Chars)),
        ((ord(c), ord(c)) for leaf in every if isinstance(leaf, str) for c in leaf),
    )
    return {
        one
        for one in terminals
        if intersect(one.first, others)
        or any(intersect(one.first, other.first) for other in terminals if other != one)
    }


class _Finder:
    """Finds terminals in rows. `banned` are those that may not be; None if none may."""

    def __init__(self, rules: dict[str, Expression], banned: set[Terminal] | None) -> None:
        self._rules = rules
        self._banned = banned
        self._trees = Trees(rules)
        self._tries = 0

    def reached(self) -> dict[str, Expression]:
        out: dict[str, Expression] = {}
        todo = ["root"]
        while todo:
            name = todo.pop()
            if name not in out:
                out[name] = self._replaced(self._rules[name])
                todo += [leaf.name for leaf in leaves(out[name]) if isinstance(leaf, Ref)]
        return out

    def _replaced(self, expression: Expression) -> Expression:
        if isinstance(expression, Options):
            return Options(tuple(map(self._replaced, expression.options)))
        if isinstance(expression, Times):
            return Times(self._replaced(expression.item), expression.low, expression.high)
        if not isinstance(expression, Row):
            return expression
        parts = expression.parts
        out: list[Expression] = []
        at = 0
        while at < len(parts):
            for end in range(min(len(parts), at + MAX_ROW), at + 1, -1):
                terminal = self._terminal(parts[at:end])
                if terminal:
                    out.append(terminal)
                    at = end
                    break
            else:
                out.append(self._replaced(parts[at]))
                at += 1
        return out[0] if len(out) == 1 else Row(tuple(out))

    def _terminal(self, parts: tuple[Expression, ...]) -> Terminal | None:
        """The parts as one terminal, if it is worth one and its texts tell where they end."""
        if self._banned is None or not any(isinstance(part, Times) for part in parts):
            return None
        self._tries += 1
        if self._tries > MAX_TRIES:
            return None
        try:
            tree, size, _ = self._trees.sized(Row(parts))
        except NoTreeError:
            return None
        if size > MAX_SIZE or not self._ends(Row(parts)):
            return None
        terminal = Terminal(tree, self._first(Row(parts)))
        return None if terminal in self._banned else terminal

    def _ends(self, expression: Expression) -> bool:
        """Whether, for certain, no text of an expression begins another, and none is empty."""
        if isinstance(expression, str | Chars):
            return True
        if isinstance(expression, Ref):
            return self._ends(self._rules[expression.name])
        if isinstance(expression, Times):
            return expression.low == expression.high != 0 and self._ends(expression.item)
        if isinstance(expression, Options):
            firsts = [self._first(option) for option in expression.options]
            apart = sum(map(_count, firsts)) == _count(union(*firsts))
            return apart and all(map(self._ends, expression.options))
        if not isinstance(expression, Row) or not expression.parts:
            return False
        follows: Ranges | None = None  # how what comes after begins
        for part in reversed(expression.parts):
            if not self._ends(part):
                # Rounds are told from what follows by their first character.
                if not isinstance(part, Times) or not self._ends(part.item) or follows is None:
                    return False
                first = self._first(part.item)
                if intersect(first, follows):
                    return False
                follows = first if part.low else union(first, follows)
            else:
                follows = self._first(part)
        return True

    def _first(self, expression: Expression) -> Ranges:
        """The characters that texts of an expression begin with."""
        return self._begins(expression)[0]

    def _begins(self, expression: Expression) -> tuple[Ranges, bool]:
        """The same, and whether a text may be empty."""
        if isinstance(expression, str):
            return ((ord(expression[0]), ord(expression[0])),), False
        if isinstance(expression, Chars):
            return expression.ranges, False
        if isinstance(expression, Terminal):
            return expression.first, False
        if isinstance(expression, Ref):
            return self._begins(self._rules[expression.name])
        if isinstance(expression, Times):
            if expression.high == 0:
                return (), True
            first, empty = self._begins(expression.item)
            return first, empty or expression.low == 0
        if isinstance(expression, Options):
            each = list(map(self._begins, expression.options))
            return union(*(first for first, _ in each)), any(empty for _, empty in each)
        found: list[Ranges] = []
        for part in expression.parts:
            first, empty = self._begins(part)
            found.append(first)
            if not empty:
                return union(*found), False
        return union(*found), True


def _count(ranges: Ranges) -> int:
    return sum(high - low + 1 for low, high in ranges)
