"""Assertions (``^ $ \\b`` …) taken out of a tree, exactly.

What an assertion asks depends on the kind of the character before it and of the one after it. A node
that holds assertions is therefore kept as the pairs of kinds between which it matches the empty text,
and as its other texts, each with the kinds that may stand before and after it. Putting two nodes
together cuts their texts down to those whose outer characters suit. Between the two edges of the
whole text there remains a tree without assertions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from stolon.constrained.regex_ast import EMPTY, NOTHING, Chars, Choice, Node, Repeat, Sequence
from stolon.constrained.regex_build import (
    Ranges,
    chars,
    choice,
    complement,
    difference,
    intersect,
    nullable,
    repeat,
    sequence,
    union,
)
from stolon.constrained.regex_classes import WORD, unicode_word
from stolon.errors import GrammarError

__all__ = ["Assertion", "relation", "resolve"]

KINDS = ("edge", "newline", "return", "ascii word", "other word", "other")
N = len(KINDS)
EDGE = 1
ALL = (1 << N) - 1
INNER = ALL & ~EDGE
ANYWHERE = (1 << N * N) - 1
MAX_WORK = 20_000
MAX_UNROLLED = 8

Relation = int
"""Pairs of kinds, before and after: bit `before * N + after`."""


@dataclass(frozen=True, slots=True)
class Assertion(Sequence):
    """The empty text, but only between the kinds of a relation. Never in a finished tree."""

    relation: Relation = ANYWHERE


def relation(holds: Callable[[str, str], bool]) -> Relation:
    """The relation of a condition on the kinds before and after."""
    bits = 0
    for before, a in enumerate(KINDS):
        for after, b in enumerate(KINDS):
            bits |= holds(a, b) << before * N + after
    return bits


@dataclass(frozen=True, slots=True)
class _Text:
    """Texts that are not empty, with the kinds (bits) that may stand before and after them."""

    before: int
    node: Node
    after: int


@dataclass(frozen=True, slots=True)
class _Parts:
    empty: Relation
    texts: tuple[_Text, ...]


def resolve(node: Node) -> Node:
    """The tree without assertions, of a whole text.

    Raises:
        GrammarError: the assertions are entangled with repetitions beyond what is worked out.
    """
    if isinstance(node, Choice):
        return choice(map(resolve, node.options))
    node = _trimmed(node)
    if not _asserts(node):
        return node
    parts = _Resolver().parts(node)
    options = [t.node for t in parts.texts if t.before & EDGE and t.after & EDGE]
    if parts.empty & 1:
        options.append(EMPTY)
    return choice(options)


def _trimmed(node: Node) -> Node:
    """Without anchors at the edges of the whole text, and without what they keep empty."""
    if not isinstance(node, Sequence) or isinstance(node, Assertion):
        return node
    parts = list(node.parts)
    for at, edges in ((0, ALL), (-1, sum(1 << k * N for k in range(N)))):
        # `edges`: the pairs with the edge of the text on this side.
        while parts:
            outer, inner = parts[at], parts[1 if at == 0 else -2] if len(parts) > 1 else EMPTY
            if (isinstance(outer, Assertion) and outer.relation & edges == edges) or (
                isinstance(inner, Assertion)
                and not inner.relation & ~edges
                and not _asserts(outer)
                and nullable(outer)
            ):
                del parts[at]
            else:
                break
    return sequence(parts)


@functools.cache
def _kinds() -> tuple[Ranges, ...]:
    """The characters of each of `KINDS`."""
    word = unicode_word()
    newlines = ((10, 10), (13, 13))
    rest = difference(complement(word), newlines)
    return (), newlines[:1], newlines[1:], WORD, difference(word, WORD), rest


class _Resolver:
    def __init__(self) -> None:
        self._work = 0
        self._ranges = _kinds()

    def parts(self, node: Node) -> _Parts:
        if isinstance(node, Assertion):
            return _Parts(node.relation, ())
        if not _asserts(node):
            return self._plain(node)
        if isinstance(node, Choice):
            return self._union(map(self.parts, node.options))
        if isinstance(node, Sequence):
            # Runs without assertions go together: cut once, not piece by piece.
            groups: list[list[Node]] = []
            for part in node.parts:
                if groups and not _asserts(part) and not _asserts(groups[-1][-1]):
                    groups[-1].append(part)
                else:
                    groups.append([part])
            out = _Parts(ANYWHERE, ())
            for group in groups:
                out = self._joined(out, self.parts(sequence(group)))
            return out
        assert isinstance(node, Repeat)
        return self._repeated(self.parts(node.node), node.low, node.high)

    def _plain(self, node: Node) -> _Parts:
        body = self._first(node, ALL)
        return _Parts(
            ANYWHERE if nullable(node) else 0,
            () if body == NOTHING else (_Text(ALL, body, ALL),),
        )

    def _union(self, items: Iterable[_Parts]) -> _Parts:
        empty = 0
        texts: dict[tuple[int, int], list[Node]] = {}
        for parts in items:
            empty |= parts.empty
            for text in parts.texts:
                texts.setdefault((text.before, text.after), []).append(text.node)
        return _Parts(empty, tuple(_Text(b, choice(nodes), a) for (b, a), nodes in texts.items()))

    def _joined(self, x: _Parts, y: _Parts) -> _Parts:
        """`x` and then `y`."""
        out = [_Parts(x.empty & y.empty, ())]
        for text in x.texts:
            for after, kinds in _rows(y.empty, before=True).items():
                node = self._last(text.node, kinds)
                if text.after & after and node != NOTHING:
                    out.append(_Parts(0, (_Text(text.before, node, text.after & after),)))
        for text in y.texts:
            for before, kinds in _rows(x.empty, before=False).items():
                node = self._first(text.node, kinds)
                if text.before & before and node != NOTHING:
                    out.append(_Parts(0, (_Text(text.before & before, node, text.after),)))
        for a in x.texts:
            for b in y.texts:
                node = sequence((self._last(a.node, b.before), self._first(b.node, a.after)))
                if node != NOTHING:
                    out.append(_Parts(0, (_Text(a.before, node, b.after),)))
        return self._union(out)

    def _repeated(self, x: _Parts, low: int, high: int | None) -> _Parts:
        """`x` some times. Iterations without text count only where too few have text."""
        empty = ANYWHERE if low == 0 else x.empty
        if low <= 1 or x.empty == ANYWHERE:
            return _Parts(empty, self._paths(x.texts, 1, high))
        texts = _Parts(0, self._paths(x.texts, low, high))
        if not x.empty:
            return texts
        if high is not None and high < 2 * (low - 1):
            raise _entangled()
        # Fewer than `low` with text: somewhere among them stands one without.
        some = _Parts(ANYWHERE, self._paths(x.texts, 1, low - 1))
        around = self._joined(self._joined(some, _Parts(x.empty, ())), some)
        return self._union((texts, around))

    def _paths(self, items: tuple[_Text, ...], low: int, high: int | None) -> tuple[_Text, ...]:
        """`low` (1 or more) to `high` of the items, each next to ones that it allows."""
        atoms = self._atoms(items)
        if not atoms or (high is not None and high < low):
            return ()
        follows = [[bool(a[2] & b[0].before and b[1] & a[0].after) for b in atoms] for a in atoms]
        count = range(len(atoms))
        firsts = [i for i in count if not any(follows[j][i] for j in count)]
        lasts = [i for i in count if not any(follows[i]) and i not in firsts]
        core = [i for i in count if i not in firsts and i not in lasts]
        inner = [*firsts, *core]
        if all(follows[i][j] for i in inner for j in core) and all(
            follows[i][j] for i in core for j in lasts
        ):
            return self._around_core(atoms, follows, (firsts, core, lasts), low, high)
        if high is None and low == 1:
            return self._closure(atoms, follows)
        if high is None or high > MAX_UNROLLED:
            raise _entangled()
        return self._unrolled(atoms, follows, low, high)

    def _around_core(
        self,
        atoms: list[tuple[_Text, int, int]],
        follows: list[list[bool]],
        groups: tuple[list[int], list[int], list[int]],
        low: int,
        high: int | None,
    ) -> tuple[_Text, ...]:
        """Any of the core between at most one that only begins and one that only ends."""
        firsts, core, lasts = groups
        texts = [atom[0] for atom in atoms]
        body = choice(texts[i].node for i in core)

        def times(fewer: int) -> Node:
            if high is not None and high < fewer:
                return NOTHING
            return repeat(body, max(low - fewer, 0), None if high is None else high - fewer)

        out = []
        if low <= 1:
            out += [_Parts(0, (texts[i],)) for i in (*firsts, *lasts)]
            out += [_Parts(0, (texts[i],)) for i in core]
        # Those of the core differ in what may stand before and after the whole.
        for i in (*firsts, *core):
            for j in (*core, *lasts):
                middle = times(2)
                if not follows[i][j]:
                    rest = max(low - 2, 1)
                    too_few = high is not None and high - 2 < rest
                    middle = (
                        NOTHING
                        if too_few or not core
                        else repeat(body, rest, None if high is None else high - 2)
                    )
                node = sequence((texts[i].node, middle, texts[j].node))
                if node != NOTHING and (high is None or high >= 2):
                    out.append(_Parts(0, (_Text(texts[i].before, node, texts[j].after),)))
        return self._union(out).texts

    def _closure(
        self, atoms: list[tuple[_Text, int, int]], follows: list[list[bool]]
    ) -> tuple[_Text, ...]:
        """All paths of one atom or more, by eliminating one atom after the other (Kleene)."""
        count = range(len(atoms))
        # Texts from atom i to atom j, without the text of i.
        step = [[atoms[j][0].node if follows[i][j] else NOTHING for j in count] for i in count]
        for k in count:
            loop = repeat(step[k][k], 0, None)
            step = [
                [
                    self._counted(choice((step[i][j], sequence((step[i][k], loop, step[k][j])))))
                    for j in count
                ]
                for i in count
            ]
        return self._union(
            _Parts(0, (_Text(a[0].before, node, b[0].after),))
            for i, a in enumerate(atoms)
            for j, b in enumerate(atoms)
            for node in [sequence((a[0].node, choice((step[i][j], EMPTY if i == j else NOTHING))))]
            if node != NOTHING
        ).texts

    def _unrolled(
        self, atoms: list[tuple[_Text, int, int]], follows: list[list[bool]], low: int, high: int
    ) -> tuple[_Text, ...]:
        out: list[_Parts] = []
        ends = {(i, i): text.node for i, (text, _, _) in enumerate(atoms)}
        for length in range(1, high + 1):
            if length >= low:
                out += [
                    _Parts(0, (_Text(atoms[i][0].before, node, atoms[j][0].after),))
                    for (i, j), node in ends.items()
                ]
            longer: dict[tuple[int, int], list[Node]] = {}
            for (i, j), node in ends.items():
                for k, (text, _, _) in enumerate(atoms):
                    if follows[j][k]:
                        longer.setdefault((i, k), []).append(sequence((node, text.node)))
            ends = {key: self._counted(choice(nodes)) for key, nodes in longer.items()}
        return self._union(out).texts

    def _atoms(self, items: tuple[_Text, ...]) -> list[tuple[_Text, int, int]]:
        """Items cut so that each has its first and its last character of kinds alike to all."""
        signatures: dict[tuple[bool, ...], int] = {}
        for kind in range(1, N):
            bit = 1 << kind
            signature = tuple(bool(m & bit) for t in items for m in (t.before, t.after))
            signatures[signature] = signatures.get(signature, 0) | bit
        atoms = []
        for text in items:
            for first in signatures.values():
                for last in signatures.values():
                    node = self._last(self._first(text.node, first), last)
                    if node != NOTHING:
                        atoms.append((_Text(text.before, node, text.after), first, last))
        return atoms

    def _counted(self, node: Node) -> Node:
        self._work += _size(node, MAX_WORK)
        if self._work > MAX_WORK:
            raise _entangled()
        return node

    def _first(self, node: Node, kinds: int) -> Node:
        """The texts of `node` that begin with a character of `kinds`."""
        if kinds & INNER == INNER and not nullable(node):
            return node
        return self._counted(self._cut(node, self._set(kinds), 1))

    def _last(self, node: Node, kinds: int) -> Node:
        """The texts of `node` that end with a character of `kinds`."""
        if kinds & INNER == INNER and not nullable(node):
            return node
        return self._counted(self._cut(node, self._set(kinds), -1))

    def _set(self, kinds: int) -> Ranges:
        return union(*(self._ranges[kind] for kind in range(1, N) if kinds >> kind & 1))

    def _cut(self, node: Node, allowed: Ranges, way: int) -> Node:
        """The non-empty texts whose first (`way` 1) or last (-1) character is allowed."""
        self._work += 1
        if self._work > MAX_WORK:
            raise _entangled()
        if isinstance(node, Chars):
            return chars(intersect(node.ranges, allowed))
        if isinstance(node, Choice):
            return choice(self._cut(option, allowed, way) for option in node.options)
        if isinstance(node, Sequence):
            options = []
            rest = node.parts[::way]
            for i, part in enumerate(rest):
                body = (self._cut(part, allowed, way), *rest[i + 1 :])
                options.append(sequence(body[::way]))
                if not nullable(part):
                    break
            return choice(options)
        more = repeat(node.node, max(node.low - 1, 0), None if node.high is None else node.high - 1)
        return sequence((self._cut(node.node, allowed, way), more)[::way])


def _rows(empty: Relation, *, before: bool) -> dict[int, int]:
    """Kinds on one side (`before` or after), by the kinds that the relation lets them have there."""
    out: dict[int, int] = {}
    for kind in range(1, N):
        if before:
            other = empty >> kind * N & ALL
        else:
            other = sum(1 << k for k in range(N) if empty >> k * N + kind & 1)
        if other:
            out[other] = out.get(other, 0) | 1 << kind
    return out


def _asserts(node: Node) -> bool:
    if isinstance(node, Assertion):
        return True
    if isinstance(node, Sequence):
        return any(map(_asserts, node.parts))
    if isinstance(node, Choice):
        return any(map(_asserts, node.options))
    return isinstance(node, Repeat) and _asserts(node.node)


def _size(node: Node, limit: int) -> int:
    total = 0
    todo = [node]
    while todo and total <= limit:
        at = todo.pop()
        total += 1
        if isinstance(at, Sequence):
            todo.extend(at.parts)
        elif isinstance(at, Choice):
            todo.extend(at.options)
        elif isinstance(at, Repeat):
            todo.append(at.node)
    return total


def _entangled() -> GrammarError:
    return GrammarError(
        "the regex has anchors or word boundaries in repetitions that can't be worked out",
        hint="move the anchor out of the repetition",
    )
