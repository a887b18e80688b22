"""``unevaluatedProperties`` and ``unevaluatedItems``: what the other keywords have looked at.

Which members and items count as evaluated depends on which branches of anyOf, oneOf, if and
dependentSchemas hold. So a schema is split into cases, one for each combination of branches that
matters, each with its own shape and its own evaluated names and items.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from stolon.constrained.schema.language import Language
from stolon.constrained.schema.shapes import ArrayShape, ObjectShape, Shape
from stolon.constrained.schema.terms import Path, Term
from stolon.errors import GrammarError

if TYPE_CHECKING:
    from stolon.constrained.schema.normaliser import Normaliser

__all__ = ["Evaluation"]

MAX_CASES = 256
MAX_SPLIT = 6


@dataclass(frozen=True, slots=True)
class Case:
    """Values of a shape, and what has been evaluated in them.

    Attributes:
        shape: the values.
        names: names of evaluated members.
        items: how many of the first items are evaluated; None for all.
        matched: items that satisfy one of these are evaluated too.
    """

    shape: Shape
    names: Language
    items: int | None
    matched: tuple[Term, ...]


class Evaluation:
    """Splits schemas with unevaluated keywords."""

    def __init__(self, normaliser: Normaliser) -> None:
        self._n = normaliser
        self._open: set[Path] = set()

    def shape(self, path: Path) -> Shape:
        """The shape of a schema that has an unevaluated keyword."""
        return self._n.algebra.union(c.shape for c in self.cases(path))

    def cases(self, path: Path) -> list[Case]:
        """The cases of a schema."""
        n = self._n
        schema = n.schema(path)
        if isinstance(schema, bool):
            whole = n.algebra.everything if schema else n.algebra.nothing
            return [self._plain(whole)]
        if path in self._open:
            raise GrammarError("an unevaluated keyword refers to itself")
        self._open.add(path)
        found = [self._own(schema, path)]
        for group in self._groups(schema, path):
            found = self._product(found, group)
        self._open.discard(path)
        if "unevaluatedItems" in schema:
            rest = n.place((*path, "unevaluatedItems"))
            found = [self._close_items(case, rest) for case in found]
        if "unevaluatedProperties" in schema:
            rest = n.place((*path, "unevaluatedProperties"))
            found = [self._close_names(case, rest) for case in found]
        return found

    def _own(self, schema: dict[str, Any], path: Path) -> Case:
        n = self._n
        names = [n.languages.words(schema.get("properties", {}))]
        names += [
            n.keywords.pattern(p, (*path, "patternProperties", p))
            for p in schema.get("patternProperties", {})
        ]
        if "additionalProperties" in schema:
            names = [n.languages.everything]
        items = None if "items" in schema else len(schema.get("prefixItems", ()))
        matched = (n.place((*path, "contains")),) if "contains" in schema else ()
        plain = {k: v for k, v in schema.items() if k != "dependentSchemas"}
        return Case(n.keywords.shape(plain, path), n.languages.union(names), items, matched)

    def _groups(self, schema: dict[str, Any], path: Path) -> Iterable[list[Case]]:
        """For each keyword that applies schemas in place, its alternatives."""
        n = self._n
        for keyword, value in schema.items():
            here = (*path, keyword)
            if keyword == "$ref":
                yield self.cases(n.resolve(value, here))
            elif keyword == "allOf":
                for i in range(len(value)):
                    yield self.cases((*here, i))
            elif keyword == "anyOf":
                yield self._any_of([(*here, i) for i in range(len(value))])
            elif keyword == "oneOf":
                yield self._one_of([(*here, i) for i in range(len(value))])
            elif keyword == "not":
                yield [self._plain(n.shape(n.terms.negate(n.place(here))))]
            elif keyword == "if":
                yield self._conditional(schema, path)
            elif keyword == "dependentSchemas":
                for name in value:
                    present = self._plain(n.keywords.presence(name, True))
                    absent = self._plain(n.keywords.presence(name, False))
                    yield [absent, *self._product([present], self.cases((*here, name)))]

    def _any_of(self, paths: list[Path]) -> list[Case]:
        n = self._n
        every = [self.cases(p) for p in paths]
        telling = [i for i, cases in enumerate(every) if any(map(self._tells, cases))]
        if len(telling) > MAX_SPLIT:
            raise GrammarError("anyOf below an unevaluated keyword has too many branches")
        silent = n.algebra.union(
            c.shape for i, cases in enumerate(every) if i not in telling for c in cases
        )
        found: list[Case] = []
        for holds in product((True, False), repeat=len(telling)):
            cases = [self._plain(n.algebra.everything if any(holds) else silent)]
            for i, yes in zip(telling, holds, strict=True):
                cases = self._product(cases, every[i] if yes else [self._fails(paths[i])])
            found += cases
        return found

    def _one_of(self, paths: list[Path]) -> list[Case]:
        found: list[Case] = []
        for i, path in enumerate(paths):
            cases = self.cases(path)
            for j, other in enumerate(paths):
                if j != i:
                    cases = self._product(cases, [self._fails(other)])
            found += cases
        return found

    def _conditional(self, schema: dict[str, Any], path: Path) -> list[Case]:
        test = (*path, "if")
        then, other = self.cases(test), [self._fails(test)]
        if "then" in schema:
            then = self._product(then, self.cases((*path, "then")))
        if "else" in schema:
            other = self._product(other, self.cases((*path, "else")))
        return then + other

    def _fails(self, path: Path) -> Case:
        n = self._n
        return self._plain(n.shape(n.terms.negate(n.place(path))))

    def _plain(self, shape: Shape) -> Case:
        return Case(shape, self._n.languages.nothing, 0, ())

    def _tells(self, case: Case) -> bool:
        """Whether a case evaluates anything."""
        return not (
            case.names is self._n.languages.nothing and case.items == 0 and not case.matched
        )

    def _product(self, left: list[Case], right: list[Case]) -> list[Case]:
        n = self._n
        found: list[Case] = []
        for a, b in product(left, right):
            shape = n.algebra.intersect(a.shape, b.shape)
            if n.algebra.is_nothing(shape):
                continue
            items = None if a.items is None or b.items is None else max(a.items, b.items)
            names = n.languages.union((a.names, b.names))
            found.append(Case(shape, names, items, tuple(dict.fromkeys(a.matched + b.matched))))
        if len(found) > MAX_CASES:
            raise GrammarError(
                "an unevaluated keyword depends on too many combinations of branches"
            )
        return found

    def _close_names(self, case: Case, rest: Term) -> Case:
        n = self._n
        others = n.languages.complement(case.names)
        shape = self._limit(case.shape, objects=ObjectShape(rules=((others, rest),)))
        return Case(shape, n.languages.everything, case.items, case.matched)

    def _close_items(self, case: Case, rest: Term) -> Case:
        n = self._n
        if case.items is None:
            return case
        term = n.terms.any((rest, *case.matched))
        prefix = (n.terms.true,) * case.items
        if term is n.terms.true:
            shape = case.shape
        else:
            shape = self._limit(case.shape, arrays=ArrayShape(prefix=prefix, rest=term))
        return Case(shape, case.names, None, ())

    def _limit(
        self,
        shape: Shape,
        *,
        arrays: ArrayShape | None = None,
        objects: ObjectShape | None = None,
    ) -> Shape:
        whole = self._n.algebra.everything
        limit = Shape(
            null=True,
            booleans=whole.booleans,
            numbers=whole.numbers,
            strings=whole.strings,
            arrays=whole.arrays
            if arrays is None
            else tuple(self._n.algebra.arrays.tightened(arrays)),
            objects=whole.objects if objects is None else (objects,),
        )
        return self._n.algebra.intersect(shape, limit)
