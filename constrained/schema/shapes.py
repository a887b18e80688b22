"""Sets of JSON values, split by type: the normal form of a schema one level deep."""

from __future__ import annotations

from dataclasses import dataclass

from stolon.constrained.schema.language import Language
from stolon.constrained.schema.numbers import Numbers
from stolon.constrained.schema.terms import Term

__all__ = ["ArrayShape", "Clause", "Count", "ObjectShape", "Shape"]

Clause = frozenset[tuple[str, bool]]
"""At least one of: a name that is present (True) or absent (False)."""


@dataclass(frozen=True, slots=True)
class Count:
    """`low` to `high` of the items from index `start` on satisfy `term`."""

    start: int
    term: Term
    low: int
    high: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """Arrays with `prefix` terms for the first items, `rest` for the others, `low` to `high` items.

    `unique` is True where no two items are equal, False where two are, None for either.
    """

    rest: Term
    prefix: tuple[Term, ...] = ()
    low: int = 0
    high: int | None = None
    counts: tuple[Count, ...] = ()
    unique: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectShape:
    """Objects of `low` to `high` members that satisfy every rule, clause and witness.

    Attributes:
        rules: (names, term): each member whose name is in the language has a value of the term.
        clauses: what must hold of the presence of names.
        witnesses: (names, term): some member has such a name and such a value.
        order: the names with a schema of their own, in the order in which they are written.
        mentioned: names of which only the presence matters, in that order.
    """

    rules: tuple[tuple[Language, Term], ...] = ()
    clauses: frozenset[Clause] = frozenset()
    low: int = 0
    high: int | None = None
    witnesses: tuple[tuple[Language, Term], ...] = ()
    order: tuple[str, ...] = ()
    mentioned: tuple[str, ...] = ()

    @property
    def required(self) -> set[str]:
        """Names that are in every such object."""
        return {name for clause in self.clauses if len(clause) == 1 for name, yes in clause if yes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A union of unions, one for each type. Integers are numbers."""

    strings: Language
    null: bool = False
    booleans: frozenset[bool] = frozenset()
    numbers: tuple[Numbers, ...] = ()
    arrays: tuple[ArrayShape, ...] = ()
    objects: tuple[ObjectShape, ...] = ()
