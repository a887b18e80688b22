"""Intersection, complement and union of object shapes; clauses on which names are present."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from stolon.constrained.schema.array_algebra import least
from stolon.constrained.schema.language import Language
from stolon.constrained.schema.languages import Languages
from stolon.constrained.schema.shapes import Clause, ObjectShape
from stolon.constrained.schema.terms import Term, Terms

__all__ = ["ObjectAlgebra", "settle"]

MAX_CLAUSES = 64


class ObjectAlgebra:
    """Operations on object shapes. `is_empty`: whether it is certain that nothing satisfies a term."""

    def __init__(
        self, terms: Terms, languages: Languages, is_empty: Callable[[Term], bool]
    ) -> None:
        self._terms = terms
        self._languages = languages
        self._is_empty = is_empty

    def both(self, a: ObjectShape, b: ObjectShape) -> list[ObjectShape]:
        """Objects of both shapes."""
        clauses = settle(a.clauses | b.clauses)
        if clauses is None:
            return []
        rules: dict[Language, Term] = {}
        for language, term in (*a.rules, *b.rules):
            known = rules.get(language)
            rules[language] = term if known is None else self._terms.all((known, term))
        return self.solved(
            ObjectShape(
                rules=tuple(rules.items()),
                clauses=clauses,
                low=max(a.low, b.low),
                high=least(a.high, b.high),
                witnesses=tuple(dict.fromkeys((*a.witnesses, *b.witnesses))),
                order=tuple(dict.fromkeys((*a.order, *b.order))),
                mentioned=tuple(dict.fromkeys((*a.mentioned, *b.mentioned))),
            )
        )

    def values(self, member: ObjectShape, names: Iterable[str]) -> Iterator[Term]:
        """What the values under some names must satisfy, in time linear in rules and names."""
        contains = self._languages.contains
        of_word: dict[str, list[int]] = {}
        others: list[int] = []
        for index, (language, _) in enumerate(member.rules):
            if language.kind == "words":
                for word in language.args[0]:
                    of_word.setdefault(word, []).append(index)
            else:
                others.append(index)
        for name in names:
            found = [i for i in others if contains(member.rules[i][0], name)]
            terms = [member.rules[i][1] for i in sorted(found + of_word.get(name, []))]
            yield self._terms.all(terms) if len(terms) != 1 else terms[0]

    def solved(self, member: ObjectShape) -> list[ObjectShape]:
        """Clauses solved as far as they follow; an empty list if there is no such object."""
        clauses = member.clauses
        names = sorted({name for clause in clauses for name, _ in clause})
        forbidden = {
            name
            for name, term in zip(names, self.values(member, names), strict=True)
            if self._is_empty(term)
        }
        absent = {frozenset(((name, False),)) for name in forbidden} - clauses
        solved = settle(clauses | absent)
        if solved is None:
            return []
        needed = sum(len(c) == 1 and next(iter(c))[1] for c in solved)
        if member.high is not None and max(needed, member.low) > member.high:
            return []
        if any(self._is_empty(term) for _, term in member.witnesses):
            return []
        return [member if solved == member.clauses else replace(member, clauses=solved)]

    def others(self, member: ObjectShape) -> Iterator[ObjectShape]:
        """Shapes that together hold every other object."""
        # The order of names is that of the schema in every part.
        like = ObjectShape(order=member.order, mentioned=member.mentioned)
        for language, term in member.rules:
            other = self._terms.negate(term)
            if other is self._terms.false:
                continue
            words = language.words
            if words is None:
                yield from self.solved(replace(like, witnesses=((language, other),)))
            else:
                for word in sorted(words):
                    rules = ((self._languages.words((word,)), other),)
                    present = frozenset((frozenset(((word, True),)),))
                    yield from self.solved(replace(like, rules=rules, clauses=present))
        for clause in member.clauses:
            broken = frozenset(frozenset(((name, not yes),)) for name, yes in clause)
            yield replace(like, clauses=broken)
        if member.low:
            yield replace(like, high=member.low - 1)
        if member.high is not None:
            yield replace(like, low=member.high + 1)
        for language, term in member.witnesses:
            yield replace(like, rules=((language, self._terms.negate(term)),))

    def joined(self, found: tuple[ObjectShape, ...]) -> tuple[ObjectShape, ...]:
        """Alternatives, those joined into one that only speak of which names are present."""
        bare = [
            m
            for m in found
            if m == ObjectShape(clauses=m.clauses, order=m.order, mentioned=m.mentioned)
        ]
        if len(bare) < 2:
            return found
        joined = bare[0].clauses
        for member in bare[1:]:
            joined = _either(joined, member.clauses)
            if len(joined) > MAX_CLAUSES:
                return found
        rest = [m for m in found if m not in bare]
        if not joined:
            return (ObjectShape(),)
        order = tuple(dict.fromkeys(name for m in bare for name in m.order))
        mentioned = tuple(dict.fromkeys(name for m in bare for name in m.mentioned))
        return (*rest, ObjectShape(clauses=joined, order=order, mentioned=mentioned))


def settle(clauses: frozenset[Clause]) -> frozenset[Clause] | None:
    """Unit propagation; None for a contradiction."""
    known: dict[str, bool] = {}
    while True:
        for clause in clauses:
            if len(clause) == 1:
                ((name, yes),) = clause
                if known.setdefault(name, yes) != yes:
                    return None
        if len(known) == len(clauses):
            return clauses
        left: set[Clause] = set()
        for clause in clauses:
            if len(clause) > 1:
                if any(known.get(n) is y for n, y in clause):
                    continue
                if any((n, not y) in clause for n, y in clause):
                    continue
                clause = frozenset((n, y) for n, y in clause if n not in known)
                if not clause:
                    return None
            left.add(clause)
        result = frozenset(left)
        if result == clauses:
            return result
        clauses = result


def _either(a: frozenset[Clause], b: frozenset[Clause]) -> frozenset[Clause]:
    """Clauses that hold exactly where all of `a` or all of `b` hold."""
    pairs = {x | y for x in a for y in b}
    pairs = {c for c in pairs if not any((n, not y) in c for n, y in c)}
    return frozenset(c for c in pairs if not any(d < c for d in pairs))
