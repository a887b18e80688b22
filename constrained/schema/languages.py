"""Sets of strings closed under union, intersection and complement, decided by derivatives.

A language is a regular expression extended with `And` and `Not` over Unicode characters (Brzozowski,
"Derivatives of regular expressions", 1964). Terms are interned by their `Languages`, so equal
terms are one object, and every question is answered within a number of states.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stolon.constrained import regex_ast
from stolon.constrained.regex_build import Ranges
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.derivatives import Derivatives
from stolon.constrained.schema.language import Language

__all__ = ["Languages"]

ALL = regex_ast.ANY.ranges
MAX_STATES = 1500
MAX_BLOCKS = 400


class Languages:
    """The algebra: makes terms, and decides membership and emptiness."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._terms: dict[tuple[object, ...], Language] = {}
        self._empty: dict[int, bool | None] = {}
        self._derivatives = Derivatives(self, budget)
        self._members: dict[tuple[Language, str], bool] = {}
        self.nothing = self.words(())
        self.epsilon = self.words(("",))
        self.any_char = self.chars(ALL)
        self.everything = self.repeat(self.any_char, 0, None)

    def tables(self) -> tuple[dict[Any, Any], ...]:
        """All that it remembers."""
        return (self._members, self._empty, self._terms)

    # Terms

    def words(self, words: Iterable[str]) -> Language:
        """A finite set of strings."""
        found = frozenset(words)
        return self._intern("words", (found,), "" in found)

    def chars(self, ranges: Ranges) -> Language:
        """One character."""
        return self._intern("chars", (ranges,), False) if ranges else self.nothing

    def sequence(self, head: Language, tail: Language) -> Language:
        if head is self.nothing or tail is self.nothing:
            return self.nothing
        if head is self.epsilon:
            return tail
        if tail is self.epsilon:
            return head
        if head.words and tail.words and len(head.words) * len(tail.words) <= 64:
            return self.words(a + b for a in head.words for b in tail.words)
        if head.kind == "seq":
            first, rest = head.args
            return self.sequence(first, self.sequence(rest, tail))
        return self._intern("seq", (head, tail), head.nullable and tail.nullable)

    def repeat(self, term: Language, low: int, high: int | None) -> Language:
        if high == 0 or term is self.epsilon:
            return self.epsilon
        if term is self.nothing:
            return self.nothing if low else self.epsilon
        if low == high == 1:
            return term
        if term.kind == "rep" and term.args[1:] == (0, None) and low <= 1:
            return term if high is None or high >= 1 else self.epsilon
        return self._intern("rep", (term, low, high), low == 0 or term.nullable)

    def union(self, terms: Iterable[Language]) -> Language:
        parts: dict[int, Language] = {}
        words: set[str] = set()
        for term in terms:
            if term is self.everything:
                return term
            for part in term.args[0] if term.kind == "or" else (term,):
                if part.words is not None:
                    words |= part.words
                else:
                    parts[part.id] = part
        if words:
            word_set = self.words(words)
            parts[word_set.id] = word_set
        if len(parts) == 1:
            return next(iter(parts.values()))
        if not parts:
            return self.nothing
        ordered = tuple(parts[i] for i in sorted(parts))
        return self._intern("or", (ordered,), any(p.nullable for p in ordered))

    def intersection(self, terms: Iterable[Language]) -> Language:
        parts: dict[int, Language] = {}
        banned: set[str] = set()
        words: frozenset[str] | None = None
        for term in terms:
            for part in term.args[0] if term.kind == "and" else (term,):
                if part is self.everything:
                    continue
                if part.words is not None:
                    words = part.words if words is None else words & part.words
                elif part.kind == "not" and part.args[0].words is not None:
                    banned |= part.args[0].words
                else:
                    parts[part.id] = part
        if words is not None:
            return self.words(
                w for w in words - banned if all(self.contains(p, w) for p in parts.values())
            )
        if any(p.kind == "not" and p.args[0].id in parts for p in parts.values()):
            return self.nothing
        if banned:
            outside = self.complement(self.words(banned))
            parts[outside.id] = outside
        if not parts:
            return self.everything
        if len(parts) == 1:
            return next(iter(parts.values()))
        ordered = tuple(parts[i] for i in sorted(parts))
        return self._intern("and", (ordered,), all(p.nullable for p in ordered))

    def complement(self, term: Language) -> Language:
        if term.kind == "not":
            inner: Language = term.args[0]
            return inner
        if term is self.nothing:
            return self.everything
        if term is self.everything:
            return self.nothing
        if term.kind == "and":
            return self.union(self.complement(part) for part in term.args[0])
        return self._intern("not", (term,), not term.nullable)

    def difference(self, term: Language, other: Language) -> Language:
        return self.intersection((term, self.complement(other)))

    def tree(self, node: regex_ast.Node) -> Language:
        """The language of a regex tree."""
        self._budget.spend()
        match node:
            case regex_ast.Chars(ranges):
                return self.chars(ranges)
            case regex_ast.Sequence(parts):
                result = self.epsilon
                for part in reversed(parts):
                    if (
                        isinstance(part, regex_ast.Chars)
                        and len(part.ranges) == 1
                        and part.ranges[0][0] == part.ranges[0][1]
                    ):
                        head = self.words((chr(part.ranges[0][0]),))
                    else:
                        head = self.tree(part)
                    result = self.sequence(head, result)
                return result
            case regex_ast.Choice(options):
                return self.union(self.tree(option) for option in options)
            case regex_ast.Repeat(inner, low, high):
                return self.repeat(self.tree(inner), low, high)

    def length(self, low: int, high: int | None) -> Language:
        """All strings of `low` to `high` characters."""
        return self.repeat(self.any_char, low, high)

    # Questions

    def contains(self, term: Language, text: str) -> bool:
        """Whether a string is in the language."""
        match term.kind:
            case "words":
                return text in term.args[0]
            case "not":
                return not self.contains(term.args[0], text)
            case "and":
                return all(self.contains(t, text) for t in term.args[0])
            case "or":
                return any(self.contains(t, text) for t in term.args[0])
        known = self._members.get((term, text))
        if known is None:
            known = self._members[term, text] = self._walk(term, text)
        return known

    def _walk(self, term: Language, text: str) -> bool:
        for char in text:
            if term is self.nothing:
                return False
            if term is self.everything:
                return True
            point = ord(char)
            term = next(
                (
                    target
                    for ranges, target in self._derivatives.moves(term)
                    if any(low <= point <= high for low, high in ranges)
                ),
                self.nothing,
            )
        return term.nullable

    def is_empty(self, term: Language) -> bool | None:
        """Whether there is no string at all; None where that needs too many states."""
        if term.nullable:
            return False
        if term.id not in self._empty:
            self._empty[term.id] = self._search(term)
        return self._empty[term.id]

    def disjoint(self, first: Language, second: Language) -> bool:
        """Whether it is certain that no string is in both."""
        return self.is_empty(self.intersection((first, second))) is True

    def _search(self, root: Language) -> bool | None:
        if root.kind == "words":
            return not root.args[0]
        if root.kind in ("chars", "seq", "rep") and root.plain:
            return False
        seen = {root.id}
        todo = [root]
        while todo:
            if len(seen) > MAX_STATES:
                return None
            ahead: list[Language] = []
            for term in todo:
                moves = self._derivatives.moves(term)
                if len(moves) > MAX_BLOCKS:
                    return None
                for _, target in moves:
                    if target.nullable:
                        return False
                    if target.id not in seen and target is not self.nothing:
                        seen.add(target.id)
                        ahead.append(target)
            todo = ahead
        return True

    def _intern(self, kind: str, args: tuple[Any, ...], nullable: bool) -> Language:
        key = (
            kind,
            *(
                tuple(x.id for x in a)
                if kind in ("or", "and")
                else a.id
                if isinstance(a, Language)
                else a
                for a in args
            ),
        )
        term = self._terms.get(key)
        if term is None:
            self._budget.spend()
            term = self._terms[key] = Language(kind, args, len(self._terms), nullable)
        return term
