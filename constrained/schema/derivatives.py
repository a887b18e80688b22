"""Derivatives of languages: what is left of a set of strings after a first character."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stolon.constrained import regex_ast
from stolon.constrained.regex_build import Ranges, complement, intersect, union
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.language import Language

if TYPE_CHECKING:
    from stolon.constrained.schema.languages import Languages

__all__ = ["Derivatives"]

Moves = list[tuple[Ranges, Language]]


class Derivatives:
    """Derives the terms of one `Languages`, each once."""

    def __init__(self, languages: Languages, budget: Budget) -> None:
        self._make = languages
        self._budget = budget

    def moves(self, term: Language) -> Moves:
        """What is left after one character: disjoint classes; those that lead to nothing left out."""
        if term.derivatives is None:
            self._budget.spend()
            term.derivatives = self._derive(term)
        return term.derivatives

    def _derive(self, term: Language) -> Moves:
        args = term.args
        match term.kind:
            case "chars":
                return [(args[0], self._make.epsilon)]
            case "words":
                heads: dict[str, list[str]] = {}
                for word in args[0]:
                    if word:
                        heads.setdefault(word[0], []).append(word[1:])
                return [
                    (((ord(c), ord(c)),), self._make.words(rest))
                    for c, rest in sorted(heads.items())
                ]
            case "seq":
                head, tail = args
                moves = [(r, self._make.sequence(t, tail)) for r, t in self.moves(head)]
                if head.nullable:
                    moves = self._merge([moves, self.moves(tail)])
                return moves
            case "rep":
                inner, low, high = args
                rest = self._make.repeat(
                    inner,
                    max(low - 1, 0),
                    None if high is None else high - 1,
                )
                return [(r, self._make.sequence(t, rest)) for r, t in self.moves(inner)]
            case "or":
                return self._merge([self.moves(t) for t in args[0]])
            case "and":
                parts: tuple[Language, ...] = args[0]
                moves = self.moves(parts[0])
                for part in parts[1:]:
                    moves = self._join(moves, self.moves(part))
                return moves
            case _:
                moves = self.moves(args[0])
                left = complement(union(*(r for r, _ in moves)))
                turned = [(r, self._make.complement(t)) for r, t in moves]
                return [m for m in turned if m[1] is not self._make.nothing] + (
                    [(left, self._make.everything)] if left else []
                )

    def _merge(self, groups: list[Moves]) -> Moves:
        """Union of several lists of moves, refined to disjoint classes, grouped by target."""
        blocks: list[tuple[Ranges, tuple[Language, ...]]] = [(regex_ast.ANY.ranges, ())]
        for moves in groups:
            refined: list[tuple[Ranges, tuple[Language, ...]]] = []
            outside = complement(union(*(r for r, _ in moves)))
            for ranges, targets in blocks:
                self._budget.spend()
                for move, target in moves:
                    both = intersect(ranges, move)
                    if both:
                        refined.append((both, (*targets, target)))
                rest = intersect(ranges, outside)
                if rest:
                    refined.append((rest, targets))
            blocks = refined
        grouped: dict[int, tuple[Language, list[Ranges]]] = {}
        for ranges, targets in blocks:
            if targets:
                target = self._make.union(targets)
                grouped.setdefault(target.id, (target, []))[1].append(ranges)
        return [(union(*rs), t) for t, rs in grouped.values() if t is not self._make.nothing]

    def _join(self, left: Moves, right: Moves) -> Moves:
        """Intersection of two lists of moves."""
        grouped: dict[int, tuple[Language, list[Ranges]]] = {}
        for a, first in left:
            for b, second in right:
                self._budget.spend()
                both = intersect(a, b)
                if both:
                    target = self._make.intersection((first, second))
                    if target is not self._make.nothing:
                        grouped.setdefault(target.id, (target, []))[1].append(both)
        return [(union(*rs), t) for t, rs in grouped.values()]
