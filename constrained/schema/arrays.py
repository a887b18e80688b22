"""Arrays as rules: positions, counted items, distinct items."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stolon.constrained.schema.distinct import all_apart, different_items
from stolon.constrained.schema.rules import Alternatives, Body, Lexeme, Parts, Ref, Repeat, option
from stolon.constrained.schema.shapes import ArrayShape, Count
from stolon.constrained.schema.terms import Term
from stolon.errors import GrammarError

if TYPE_CHECKING:
    from stolon.constrained.schema.emit import Emitter

__all__ = ["ArrayEmitter"]

MAX_STATES = 10_000
_OPEN, _CLOSE = Lexeme('"["'), Lexeme('"]"')

_Choice = tuple[Term, tuple[int, ...]]


class ArrayEmitter:
    """Writes array shapes for an `Emitter`."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter

    def body(self, array: ArrayShape) -> Body:
        """All arrays of a shape."""
        if array.unique is False:
            raise GrammarError("'uniqueItems' can't be negated on these items")
        if array.unique and not all_apart(self._emitter.normaliser, array):
            return Parts((_OPEN, different_items(self._emitter, array), _CLOSE))
        inside = self._counted(array) if array.counts else self._plain(array)
        return Parts((_OPEN, inside, _CLOSE))

    def _plain(self, array: ArrayShape) -> Body:
        """Items of a prefix, each further one optional, then the others."""
        value, comma = self._emitter.value, self._emitter.comma
        size = len(array.prefix)
        least = max(array.low - size, 0)
        most = None if array.high is None else array.high - size
        rest = value(array.rest)
        if size:
            inside: Body = Repeat(Parts((comma, rest)), least, most)
        elif most == 0:
            return Parts(())
        else:
            more = Repeat(
                Parts((comma, rest)), max(least - 1, 0), None if most is None else most - 1
            )
            inside = Parts((rest, more))
            return inside if least else option(inside)
        if most is not None and most <= 0:
            inside = Parts(())
        for i in range(size - 1, -1, -1):
            item: Body = value(array.prefix[i])
            inside = Parts((item, inside) if i == 0 else (comma, item, inside))
            if i >= array.low:
                inside = option(inside)
        return inside

    def _counted(self, array: ArrayShape) -> Body:
        """A state for each index and each number of items found, as far as they matter.

        An item that is counted towards a lower bound only may also pass uncounted: some way to
        count reaches the bound exactly where enough items satisfy the term. Below an upper bound
        each item is told apart.
        """
        rules, comma = self._emitter.rules, self._emitter.comma
        top = max(
            1,
            len(array.prefix),
            array.low,
            array.high or 0,
            *(c.start for c in array.counts),
        )
        start = (0, tuple(0 for _ in array.counts))
        refs: dict[tuple[int, tuple[int, ...]], Ref] = {start: rules.reserve()}
        todo = [start]
        while todo:
            state = todo.pop()
            index, found = state
            loops: list[Body] = []
            onward: list[Body] = []
            enough = index >= array.low and all(
                n >= c.low for n, c in zip(found, array.counts, strict=True)
            )
            if enough:
                onward.append(Parts(()))
            if array.high is None or index < array.high:
                base = array.prefix[index] if index < len(array.prefix) else array.rest
                after = min(index + 1, top) if array.high is None else index + 1
                for term, counts in self._choices(base, index, found, array.counts):
                    item: Body = self._emitter.value(term)
                    step = Parts((item,) if index == 0 else (comma, item))
                    target = (after, counts)
                    if target == state:
                        loops.append(step)
                        continue
                    if target not in refs:
                        if len(refs) >= MAX_STATES:
                            raise GrammarError(
                                "counting the items of an array takes too many states"
                            )
                        refs[target] = rules.reserve()
                        todo.append(target)
                    onward.append(Parts((step, refs[target])))
            ahead = Alternatives(tuple(onward))
            body: Body = ahead
            if loops:
                body = Parts((Repeat(Alternatives(tuple(loops)), 0, None), ahead))
            rules.define(refs[state], body)
        return refs[start]

    def _choices(
        self, base: Term, index: int, found: tuple[int, ...], counts: tuple[Count, ...]
    ) -> list[_Choice]:
        """Kinds of the next item, and the counters after it."""
        terms = self._emitter.normaliser.terms
        choices: list[_Choice] = [(base, ())]
        for n, count in zip(found, counts, strict=True):
            if index < count.start or (count.high is None and n >= count.low):
                choices = [(t, (*c, n)) for t, c in choices]
                continue
            grown: list[_Choice] = []
            for term, done in choices:
                if count.high is None or n < count.high:
                    more = n + 1
                    grown.append((terms.all((term, count.term)), (*done, more)))
                other = term if count.high is None else terms.all((term, terms.negate(count.term)))
                grown.append((other, (*done, n)))
            choices = grown
        return [(t, c) for t, c in choices if not self._emitter.normaliser.is_empty(t)]
