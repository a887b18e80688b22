"""Boolean expressions over the schemas of one document, in negation normal form.

A term says what a value must satisfy without saying it in detail: the schema at a place, a
constant, or a combination. Equal terms are one object, so there are finitely many for a recursive
schema, and each becomes one rule of a grammar.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from stolon.constrained.schema.budget import Budget

__all__ = ["Path", "Term", "Terms", "value_key"]

Path = tuple[str | int, ...]


class Term:
    """An interned expression.

    true · false · at (path of a schema) · const (value) · not (an at) · all (terms) · any (terms)
    """

    __slots__ = ("args", "id", "kind")

    def __init__(self, kind: str, args: Any, id: int) -> None:
        self.kind = kind
        self.args = args
        self.id = id

    def __repr__(self) -> str:
        return f"{self.kind}({self.args})"


class Terms:
    """Makes terms. `true` and `false` are the two constants."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._terms: dict[tuple[str, Any], Term] = {}
        self.true = self._intern("true", None, None)
        self.false = self._intern("false", None, None)

    def tables(self) -> tuple[dict[Any, Any], ...]:
        """All that it remembers."""
        return (self._terms,)

    def at(self, path: Path) -> Term:
        """The schema at a place of the document."""
        return self._intern("at", path, path)

    def const(self, value: Any) -> Term:
        """One JSON value."""
        return self._intern("const", value_key(value), value)

    def negate(self, term: Term) -> Term:
        """Every other value."""
        match term.kind:
            case "true":
                return self.false
            case "false":
                return self.true
            case "not":
                positive: Term = term.args
                return positive
            case "all":
                return self.any(self.negate(t) for t in term.args)
            case "any":
                return self.all(self.negate(t) for t in term.args)
            case _:
                return self._intern("not", term.id, term)

    def all(self, terms: Iterable[Term]) -> Term:
        """What satisfies every term."""
        return self._combine("all", terms, self.true, self.false)

    def any(self, terms: Iterable[Term]) -> Term:
        """What satisfies at least one term."""
        return self._combine("any", terms, self.false, self.true)

    def _combine(self, kind: str, terms: Iterable[Term], unit: Term, zero: Term) -> Term:
        parts: dict[int, Term] = {}
        for term in terms:
            if term is zero:
                return zero
            if term is not unit:
                for part in term.args if term.kind == kind else (term,):
                    parts[part.id] = part
        if not parts:
            return unit
        if len(parts) == 1:
            return next(iter(parts.values()))
        key = tuple(sorted(parts))
        known = self._terms.get((kind, key))
        if known is not None:
            return known
        if any(p.kind == "not" and p.args.id in parts for p in parts.values()):
            return self._alias(kind, key, zero)
        if kind == "all" and [p.kind for p in parts.values()].count("const") > 1:
            return self._alias(kind, key, self.false)
        return self._intern(kind, key, tuple([parts[i] for i in key]))

    def _alias(self, kind: str, key: Any, term: Term) -> Term:
        """Remember what a combination comes to."""
        self._budget.spend()
        self._terms[kind, key] = term
        return term

    def _intern(self, kind: str, key: Any, args: Any) -> Term:
        term = self._terms.get((kind, key))
        if term is None:
            self._budget.spend()
            term = self._terms[kind, key] = Term(kind, args, len(self._terms))
        return term


def value_key(value: Any) -> Any:
    """A hashable form, equal for values that JSON Schema holds equal (1 and 1.0, not 1 and true)."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return type(value).__name__, value
    if isinstance(value, (int, float)):
        return "number", Fraction(str(value))
    if isinstance(value, list):
        return "array", tuple(value_key(v) for v in value)
    return "object", frozenset((k, value_key(v)) for k, v in value.items())
