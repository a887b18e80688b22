"""Intersection, union and complement of shapes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from stolon.constrained.schema.array_algebra import ArrayAlgebra
from stolon.constrained.schema.budget import Budget
from stolon.constrained.schema.languages import Languages
from stolon.constrained.schema.numbers import Numbers, both
from stolon.constrained.schema.object_algebra import ObjectAlgebra
from stolon.constrained.schema.shapes import ArrayShape, ObjectShape, Shape
from stolon.constrained.schema.terms import Term, Terms
from stolon.errors import GrammarError

__all__ = ["Algebra"]

MAX_ALTERNATIVES = 2048

_T = TypeVar("_T", bound=Hashable)


class Algebra:
    """Operations on the shapes of one document.

    Args:
        is_empty: whether it is certain that no value satisfies a term.
    """

    def __init__(
        self,
        terms: Terms,
        languages: Languages,
        budget: Budget,
        is_empty: Callable[[Term], bool],
    ) -> None:
        self.terms = terms
        self.languages = languages
        self._budget = budget
        self.arrays = ArrayAlgebra(terms, is_empty)
        self.objects = ObjectAlgebra(terms, languages, is_empty)
        self.nothing = Shape(strings=languages.nothing)
        self.everything = Shape(
            null=True,
            booleans=frozenset((False, True)),
            numbers=(Numbers(),),
            strings=languages.everything,
            arrays=(ArrayShape(rest=terms.true),),
            objects=(ObjectShape(),),
        )

    def is_nothing(self, shape: Shape) -> bool:
        """Whether it is certain that a shape holds no value."""
        return (
            not (shape.null or shape.booleans or shape.numbers or shape.arrays or shape.objects)
            and self.languages.is_empty(shape.strings) is True
        )

    def disjoint(self, a: Shape, b: Shape) -> bool:
        """Whether it is certain that no value is of both shapes: `is_nothing` of their intersection."""
        if (a.null and b.null) or not a.booleans.isdisjoint(b.booleans):
            return False
        if self._meet(a.numbers, b.numbers, both) or self._meet(
            a.objects, b.objects, self.objects.both
        ):
            return False
        if self._meet(a.arrays, b.arrays, self.arrays.both):
            return False
        strings = self.languages.intersection((a.strings, b.strings))
        return self.languages.is_empty(strings) is True

    def _meet(
        self, left: tuple[_T, ...], right: tuple[_T, ...], join: Callable[[_T, _T], list[_T]]
    ) -> bool:
        for a in left:
            for b in right:
                self._budget.spend()
                if join(a, b):
                    return True
        return False

    def union(self, shapes: Iterable[Shape]) -> Shape:
        """Values of any shape."""
        found = [s for s in shapes if s is not self.nothing]
        if len(found) == 1:
            return found[0]
        if not found:
            return self.nothing
        return Shape(
            null=any(s.null for s in found),
            booleans=frozenset(b for s in found for b in s.booleans),
            numbers=self._collapse((n for s in found for n in s.numbers), Numbers()),
            strings=self.languages.union(s.strings for s in found),
            arrays=self._collapse((a for s in found for a in s.arrays), self.everything.arrays[0]),
            objects=self.objects.joined(
                self._collapse((o for s in found for o in s.objects), ObjectShape())
            ),
        )

    def intersect(self, a: Shape, b: Shape) -> Shape:
        """Values of both shapes."""
        if a is self.everything or b is self.nothing or a is b:
            return b
        if b is self.everything or a is self.nothing:
            return a
        return Shape(
            null=a.null and b.null,
            booleans=a.booleans & b.booleans,
            numbers=self._product(a.numbers, b.numbers, both),
            strings=self.languages.intersection((a.strings, b.strings)),
            arrays=self._product(a.arrays, b.arrays, self.arrays.both),
            objects=self._product(a.objects, b.objects, self.objects.both),
        )

    def complement(self, shape: Shape) -> Shape:
        """All other values."""
        if shape is self.everything:
            return self.nothing
        if shape is self.nothing:
            return self.everything
        numbers: tuple[Numbers, ...] = (Numbers(),)
        for one in shape.numbers:
            numbers = self._product(numbers, tuple(one.complement()), both)
        arrays = self.everything.arrays
        for array in shape.arrays:
            arrays = self._product(arrays, tuple(self.arrays.others(array)), self.arrays.both)
        objects = self.everything.objects
        for member in shape.objects:
            objects = self._product(objects, tuple(self.objects.others(member)), self.objects.both)
        return Shape(
            null=not shape.null,
            booleans=frozenset((False, True)) - shape.booleans,
            numbers=numbers,
            strings=self.languages.complement(shape.strings),
            arrays=arrays,
            objects=objects,
        )

    def _product(
        self, left: tuple[_T, ...], right: tuple[_T, ...], join: Callable[[_T, _T], list[_T]]
    ) -> tuple[_T, ...]:
        result: dict[_T, None] = {}
        for a in left:
            for b in right:
                self._budget.spend()
                result.update(dict.fromkeys(join(a, b)))
                if len(result) > MAX_ALTERNATIVES:
                    raise GrammarError("the schema has too many combinations of alternatives")
        return tuple(result)

    def _collapse(self, items: Iterable[_T], whole: _T) -> tuple[_T, ...]:
        found = tuple(dict.fromkeys(items))
        return (whole,) if whole in found else found
