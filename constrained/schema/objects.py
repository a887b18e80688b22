"""Objects as rules: named members in the order of the schema, then members with other names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stolon.constrained.schema.language import Language
from stolon.constrained.schema.names import Names
from stolon.constrained.schema.object_algebra import settle
from stolon.constrained.schema.rules import Alternatives, Body, Lexeme, Parts, Ref, Repeat, option
from stolon.constrained.schema.shapes import Clause, ObjectShape
from stolon.constrained.schema.terms import Term
from stolon.errors import GrammarError

if TYPE_CHECKING:
    from stolon.constrained.schema.emit import Emitter

__all__ = ["ObjectEmitter"]

MAX_STATES = 20_000
_OPEN, _CLOSE = Lexeme('"{"'), Lexeme('"}"')

_State = tuple[int, frozenset[Clause], int]


class ObjectEmitter:
    """Writes object shapes for an `Emitter`."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._n = emitter.normaliser
        self._names = Names(emitter.normaliser)
        self._keys: dict[str, Lexeme] = {}

    def body(self, member: ObjectShape) -> Body:
        """All objects of a shape."""
        if not member.witnesses:
            return self._members(member, None)
        return self._witnessed(member)

    def _witnessed(self, member: ObjectShape) -> Body:
        """Each way to satisfy the witnesses: by names that the schema knows, one by another name."""
        languages = self._n.languages
        names = self._names.known(member)
        ways: list[tuple[ObjectShape, tuple[Language, Term] | None]] = [
            (replace(member, witnesses=()), None)
        ]
        for language, term in member.witnesses:
            grown: list[tuple[ObjectShape, tuple[Language, Term] | None]] = []
            for shape, witness in ways:
                for name in names:
                    if languages.contains(language, name):
                        unit = frozenset((frozenset(((name, True),)),))
                        rule = (languages.words((name,)), term)
                        extra = ObjectShape(rules=(rule,), clauses=unit, order=(name,))
                        both = self._n.algebra.objects.both(shape, extra)
                        grown += [(b, witness) for b in both]
                outside = languages.difference(language, languages.words(names))
                if languages.is_empty(outside) is True:
                    continue
                if witness is None:
                    grown.append((shape, (outside, term)))
                elif self._names.others(member, names):
                    raise GrammarError("an object needs two members of open names")
            ways = grown
            if len(ways) > 256:
                raise GrammarError("an object needs members of open names in too many ways")
        return Alternatives(tuple(self._members(s, w) for s, w in ways))

    def _members(self, member: ObjectShape, witness: tuple[Language, Term] | None) -> Body:
        """A state for each name, what is still asked of later names, and the number of members."""
        rules = self._emitter.rules
        names = self._names.known(member)
        values = list(self._n.algebra.objects.values(member, names))
        classes = self._names.others(member, names)
        last = self._names.narrowed(classes, witness)
        if witness is not None and not last:
            return Alternatives(())
        settled = settle(member.clauses)
        if settled is None:
            return Alternatives(())
        # What is asked of one name alone is no part of a state: after settling nothing else depends on it.
        alone = {name: yes for clause in settled if len(clause) == 1 for name, yes in clause}
        asked = frozenset(clause for clause in settled if len(clause) > 1)
        tied = {name for clause in asked for name, _ in clause}
        cap = max(member.low, 1) if member.high is None else max(member.high, 1)
        start: _State = (0, asked, 0)
        refs: dict[_State, Ref] = {start: rules.reserve()}
        todo = [start]

        def goto(state: _State) -> Ref:
            if state not in refs:
                if len(refs) >= MAX_STATES:
                    raise GrammarError("the members of an object depend on each other too much")
                refs[state] = rules.reserve()
                todo.append(state)
            return refs[state]

        try:
            while todo:
                state = todo.pop()
                ref = refs[state]
                chain: list[Body] = []
                while True:
                    index, clauses, size = state
                    if index == len(names):
                        chain.append(self._tail(member, classes, last, size))
                        break
                    without: frozenset[Clause] | None = clauses
                    with_it: frozenset[Clause] | None = clauses
                    if names[index] in tied:
                        without = _decide(clauses, names[index], False)
                        with_it = _decide(clauses, names[index], True)
                    elif names[index] in alone:
                        without, with_it = (
                            (None, clauses) if alone[names[index]] else (clauses, None)
                        )
                    if values[index] is self._n.terms.false or size == member.high:
                        with_it = None
                    head: list[Body] = []
                    if with_it is not None:
                        head = [*self._key(names[index], size), self._emitter.value(values[index])]
                    taken = None if with_it is None else (index + 1, with_it, min(size + 1, cap))
                    left = None if without is None else (index + 1, without, size)
                    if taken is None and left is None:
                        chain.append(Alternatives(()))
                        break
                    if taken is not None and left is not None:
                        chain.append(Alternatives((Parts((*head, goto(taken))), goto(left))))
                        break
                    # One way to go on: no rule of its own.
                    chain += head
                    state = taken or left  # type: ignore[assignment]
                rules.define(ref, Parts(tuple(chain)))
            return Parts((_OPEN, refs[start], _CLOSE))
        finally:
            while refs:  # one by one: freeing many sets of clauses at once holds up other threads
                refs.popitem()

    def _key(self, name: str, size: int) -> list[Body]:
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = self._emitter.named(name)
        return [self._emitter.comma, key] if size else [key]

    def _tail(
        self,
        member: ObjectShape,
        classes: list[tuple[Language, Term]],
        last: list[tuple[Language, Term]],
        size: int,
    ) -> Body:
        """Members with names that the schema does not mention.

        Nothing keeps such a name from coming twice, and readers then keep the last value. So at most
        one of them counts towards a minimum, and a member that must be there comes last.
        """
        comma = self._emitter.comma
        missing = max(member.low - size, 0)
        room = None if member.high is None else member.high - size
        if room is not None and (room < missing or (last and room < 1)):
            return Alternatives(())
        if missing > 1 and classes:
            raise GrammarError(
                "'minProperties' can't be enforced where names are open",
                hint="name the properties, or check the finished value",
            )
        if not classes:
            return Parts(()) if not missing else Alternatives(())
        one = self._member(classes)
        if last:
            witness = self._member(last)
            more = None if room is None else room - 1
            if size:
                return Parts((Repeat(Parts((comma, one)), 0, more), comma, witness))
            return Parts((Repeat(Parts((one, comma)), 0, more), witness))
        if room == 0:
            return Parts(())
        if size:
            return Repeat(Parts((comma, one)), missing, room)
        inside = Parts((one, Repeat(Parts((comma, one)), 0, None if room is None else room - 1)))
        return inside if missing else option(inside)

    def _member(self, classes: list[tuple[Language, Term]]) -> Body:
        emitter = self._emitter
        return Alternatives(
            tuple(Parts((emitter.key(language), emitter.value(term))) for language, term in classes)
        )


def _decide(clauses: frozenset[Clause], name: str, present: bool) -> frozenset[Clause] | None:
    """What remains to be satisfied; None if nothing can satisfy it."""
    left: set[Clause] = set()
    for clause in clauses:
        if (name, present) in clause:
            continue
        if (name, not present) in clause:
            clause = clause - {(name, not present)}
            if not clause:
                return None
        left.add(clause)
    return settle(frozenset(left))
