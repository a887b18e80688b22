"""Intersection and complement of array shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from stolon.constrained.schema.shapes import ArrayShape, Count
from stolon.constrained.schema.terms import Term, Terms

__all__ = ["ArrayAlgebra", "least"]


class ArrayAlgebra:
    """Operations on array shapes. `is_empty`: whether it is certain that nothing satisfies a term."""

    def __init__(self, terms: Terms, is_empty: Callable[[Term], bool]) -> None:
        self._terms = terms
        self._is_empty = is_empty

    def both(self, a: ArrayShape, b: ArrayShape) -> list[ArrayShape]:
        """Arrays of both shapes."""
        if a.unique is not None and b.unique is not None and a.unique != b.unique:
            return []
        size = max(len(a.prefix), len(b.prefix))
        every = self._terms.all
        return self.tightened(
            ArrayShape(
                prefix=tuple(every((self.item(a, i), self.item(b, i))) for i in range(size)),
                rest=every((a.rest, b.rest)),
                low=max(a.low, b.low),
                high=least(a.high, b.high),
                counts=tuple(dict.fromkeys((*a.counts, *b.counts))),
                unique=a.unique if a.unique is not None else b.unique,
            )
        )

    @staticmethod
    def item(array: ArrayShape, index: int) -> Term:
        """What the item at an index must satisfy."""
        return array.prefix[index] if index < len(array.prefix) else array.rest

    def tightened(self, array: ArrayShape) -> list[ArrayShape]:
        """Bounds tightened to what the items allow; an empty list if there is no such array."""
        high = array.high
        prefix = array.prefix
        for i, term in enumerate(prefix):
            if self._is_empty(term):
                high, prefix = least(high, i), prefix[:i]
                break
        else:
            if self._is_empty(array.rest):
                high = least(high, len(prefix))
        counts: list[Count] = []
        for count in array.counts:
            if count.term is self._terms.true and count.start == 0:
                array = replace(array, low=max(array.low, count.low))
                high = least(high, count.high)
            elif count.low or count.high is not None:
                if count.low and self._is_empty(count.term):
                    return []
                counts.append(count)
        unique = array.unique
        if high is not None:
            prefix = prefix[:high]
            if high <= 1:
                if unique is False:
                    return []
                unique = None
            if array.low > high or any(c.start + c.low > high for c in counts):
                return []
        while prefix and prefix[-1] is array.rest:
            prefix = prefix[:-1]
        return [replace(array, prefix=prefix, high=high, counts=tuple(counts), unique=unique)]

    def others(self, array: ArrayShape) -> Iterator[ArrayShape]:
        """Shapes that together hold every other array."""
        true, negate = self._terms.true, self._terms.negate
        for i, term in enumerate(array.prefix):
            if term is not true:
                yield ArrayShape(prefix=(true,) * i + (negate(term),), rest=true, low=i + 1)
        if array.rest is not true:
            other = Count(len(array.prefix), negate(array.rest), 1, None)
            yield from self.tightened(ArrayShape(rest=true, counts=(other,)))
        if array.low:
            yield ArrayShape(rest=true, high=array.low - 1)
        if array.high is not None:
            yield ArrayShape(rest=true, low=array.high + 1)
        for c in array.counts:
            if c.low:
                fewer = Count(c.start, c.term, 0, c.low - 1)
                yield from self.tightened(ArrayShape(rest=true, counts=(fewer,)))
            if c.high is not None:
                more = Count(c.start, c.term, c.high + 1, None)
                yield from self.tightened(ArrayShape(rest=true, counts=(more,)))
        if array.unique is not None:
            yield ArrayShape(rest=true, unique=not array.unique)


def least(a: int | None, b: int | None) -> int | None:
    """The lower of two upper bounds, of which None is no bound."""
    return b if a is None else a if b is None else min(a, b)
