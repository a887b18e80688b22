"""``uniqueItems``: decided where the items are few values, or can't be equal in the first place."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING, Any

from stolon.constrained.schema.rules import Alternatives, Body, Lexeme, Parts
from stolon.constrained.schema.shapes import ArrayShape, Shape
from stolon.constrained.schema.terms import Term, value_key
from stolon.errors import GrammarError

if TYPE_CHECKING:
    from stolon.constrained.schema.emit import Emitter
    from stolon.constrained.schema.normaliser import Normaliser

__all__ = ["all_apart", "different_items"]

MAX_VALUES = 64  # bits in the parameter of a rule
MAX_PAIRED = 8
MAX_SETS = 2048


def all_apart(normaliser: Normaliser, array: ArrayShape) -> bool:
    """Whether no two positions of an array can hold equal items."""
    if array.high is None or array.high > MAX_PAIRED:
        return False
    items = [normaliser.algebra.arrays.item(array, i) for i in range(array.high)]
    return all(normaliser.disjoint(a, b) for a, b in combinations(items, 2))


def different_items(emitter: Emitter, array: ArrayShape) -> Body:
    """The inside of arrays whose items are all different.

    Raises:
        GrammarError: there are too many values.
    """
    if array.counts:
        raise GrammarError("'uniqueItems' can't be combined with 'contains'")
    places = [_Values(emitter, term) for term in array.prefix[: array.high]]
    rest = _Values(emitter, array.rest if array.high is None or array.high > len(places) else None)
    if places:
        return _by_sets(emitter, array, places, rest)
    return _by_bits(emitter, array, rest)


class _Values(dict[Any, Lexeme]):
    """The values of a term by what makes them equal, each as its text."""

    def __init__(self, emitter: Emitter, term: Term | None) -> None:
        for value in [] if term is None else _values(emitter.normaliser, term):
            text = json.dumps(value, ensure_ascii=False, separators=emitter.separators)
            self[value_key(value)] = Lexeme(json.dumps(text, ensure_ascii=False))
        if len(self) > MAX_VALUES:
            raise _too_many()


def _by_sets(emitter: Emitter, array: ArrayShape, places: list[_Values], rest: _Values) -> Body:
    """A rule for each set of values that have been used; its size is the index of the next item."""
    rules, start = emitter.rules, frozenset[Any]()
    refs = {start: rules.reserve()}
    todo = [start]
    while todo:
        used = todo.pop()
        index = len(used)
        options: list[Body] = [Parts(())] if index >= array.low else []
        if array.high is None or index < array.high:
            for key, text in (places[index] if index < len(places) else rest).items():
                if key in used:
                    continue
                target = used | {key}
                if target not in refs:
                    if len(refs) >= MAX_SETS:
                        raise _too_many()
                    refs[target] = rules.reserve()
                    todo.append(target)
                comma = (emitter.comma,) if index else ()
                options.append(Parts((*comma, text, refs[target])))
        rules.define(refs[used], Alternatives(tuple(options)))
    return refs[start]


def _by_bits(emitter: Emitter, array: ArrayShape, values: _Values) -> Body:
    """One rule of llguidance's parametric Lark, whose parameter has a bit for each value used."""
    most = len(values) if array.high is None else min(array.high, len(values))
    if array.low > most:
        return Alternatives(())
    if not values:
        return Parts(())
    name = emitter.rules.fresh("u")
    bits = f"[0:{len(values)}]"
    first = ['""'] if array.low == 0 else []
    more = [f'"" %if bit_count_ge({bits}, {array.low})']
    for i, text in enumerate(values.values()):
        first.append(f"{text.text} {name}x::set_bit({i}) %if bit_clear({i})")
        more.append(
            f"{emitter.comma.text} {text.text} {name}x::set_bit({i})"
            f" %if and(bit_clear({i}), bit_count_lt({bits}, {most}))"
        )
    lines = [f"{name}::_: {' | '.join(first)}", f"{name}x::_: {' | '.join(more)}"]
    return emitter.rules.verbatim(f"{name}::0x0", lines)


def _too_many() -> GrammarError:
    return GrammarError(
        "'uniqueItems' can't be enforced on these items",
        hint=f"it can for at most {MAX_VALUES} values, as of an enum, or with 'maxItems' of 1",
    )


def _values(normaliser: Normaliser, term: Term) -> list[Any]:
    """All values of a term, if they are few."""
    shape: Shape = normaliser.shape(term)
    found: list[Any] = [None] if shape.null else []
    found += sorted(shape.booleans)
    for numbers in shape.numbers:
        low, high, step = numbers.low, numbers.high, numbers.step
        if low is None or high is None or numbers.indivisible:
            raise _too_many()
        count = 0 if low == high else (high - low) / step if step else Fraction(MAX_VALUES)
        if count >= MAX_VALUES:
            raise _too_many()
        points = [low + (step or 0) * i for i in range(int(count) + 1)]
        found += [int(p) if p.denominator == 1 else float(p) for p in points]
    words = shape.strings.words
    if words is None and not normaliser.languages.is_empty(shape.strings):
        raise _too_many()
    found += sorted(words or ())
    for array in shape.arrays:
        if array.high != 0:
            raise _too_many()
        found.append([])
    if term.kind == "const" and shape.objects:
        return [term.args]
    if shape.objects:
        raise _too_many()
    return found
