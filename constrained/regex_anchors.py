"""Assertions (``^ $ \\b`` …) taken out of a tree, exactly.

A node that holds assertions is kept as the pairs of kinds between which it matches the empty text, and
as its other texts, each with the kinds that may stand before and after it. Putting two nodes together
cuts their texts down to those whose outer characters suit. Between the two edges of the whole text there
remains a tree without assertions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stolon.constrained.regex_assertions import (
    ALL,
    ANYWHERE,
    EDGE,
    Assertion,
    N,
    Relation,
    asserts,
    sides,
)
from stolon.constrained.regex_ast import EMPTY, NOTHING, Choice, Node, Repeat, Sequence
from stolon.constrained.regex_build import choice, nullable, sequence
from stolon.constrained.regex_cuts import Cutter, entangled
from stolon.constrained.regex_paths import Text, merged, paths

__all__ = ["resolve"]


def resolve(node: Node) -> Node:
    """The tree without assertions, of a whole text.

    Raises:
        GrammarError: the assertions are entangled with repetitions beyond what is worked out.
    """
    if isinstance(node, Choice):
        return choice(map(resolve, node.options))
    node = _trimmed(node)
    if not asserts(node):
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
                and not asserts(outer)
                and nullable(outer)
            ):
                del parts[at]
            else:
                break
    return sequence(parts)


@dataclass(frozen=True, slots=True)
class _Parts:
    """The texts of a node: between which kinds the empty one, and the others."""

    empty: Relation
    texts: tuple[Text, ...]


class _Resolver:
    def __init__(self) -> None:
        self._cutter = Cutter()

    def parts(self, node: Node) -> _Parts:
        if isinstance(node, Assertion):
            return _Parts(node.relation, ())
        if not asserts(node):
            return self._plain(node)
        if isinstance(node, Choice):
            return _union(map(self.parts, node.options))
        if isinstance(node, Sequence):
            # Runs without assertions go together: cut once, not piece by piece.
            groups: list[list[Node]] = []
            for part in node.parts:
                if groups and not asserts(part) and not asserts(groups[-1][-1]):
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
        body = self._cutter.first(node, ALL)
        return _Parts(
            ANYWHERE if nullable(node) else 0,
            () if body == NOTHING else (Text(ALL, body, ALL),),
        )

    def _joined(self, x: _Parts, y: _Parts) -> _Parts:
        """`x` and then `y`."""
        first, last = self._cutter.first, self._cutter.last
        out: list[Text] = []
        for text in x.texts:
            for after, kinds in sides(y.empty, before=True).items():
                node = last(text.node, kinds)
                if text.after & after and node != NOTHING:
                    out.append(Text(text.before, node, text.after & after))
        for text in y.texts:
            for before, kinds in sides(x.empty, before=False).items():
                node = first(text.node, kinds)
                if text.before & before and node != NOTHING:
                    out.append(Text(text.before & before, node, text.after))
        for a in x.texts:
            for b in y.texts:
                node = sequence((last(a.node, b.before), first(b.node, a.after)))
                if node != NOTHING:
                    out.append(Text(a.before, node, b.after))
        return _Parts(x.empty & y.empty, merged(out))

    def _repeated(self, x: _Parts, low: int, high: int | None) -> _Parts:
        """`x` some times. Iterations without text count only where too few have text."""
        empty = ANYWHERE if low == 0 else x.empty
        if low <= 1 or x.empty == ANYWHERE:
            return _Parts(empty, paths(self._cutter, x.texts, 1, high))
        texts = _Parts(0, paths(self._cutter, x.texts, low, high))
        if not x.empty:
            return texts
        if high is not None and high < 2 * (low - 1):
            raise entangled()
        # Fewer than `low` with text: somewhere among them stands one without.
        some = _Parts(ANYWHERE, paths(self._cutter, x.texts, 1, low - 1))
        around = self._joined(self._joined(some, _Parts(x.empty, ())), some)
        return _union((texts, around))


def _union(items: Iterable[_Parts]) -> _Parts:
    empty = 0
    texts: list[Text] = []
    for parts in items:
        empty |= parts.empty
        texts += parts.texts
    return _Parts(empty, merged(texts))
