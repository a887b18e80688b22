"""Texts repeated where each allows only some kinds of characters beside it.

The texts are cut into atoms, whose outer characters are alike to all, so that of two atoms it is known
whether one may follow the other. A repetition then is the paths of such steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stolon.constrained.regex_assertions import N
from stolon.constrained.regex_ast import EMPTY, NOTHING, Node
from stolon.constrained.regex_build import choice, repeat, sequence
from stolon.constrained.regex_cuts import Cutter, entangled

__all__ = ["Text", "merged", "paths"]

MAX_UNROLLED = 8


@dataclass(frozen=True, slots=True)
class Text:
    """Texts that are not empty, with the kinds (bits) that may stand before and after them."""

    before: int
    node: Node
    after: int


def merged(texts: Iterable[Text]) -> tuple[Text, ...]:
    """The same texts, those that allow the same beside them as one."""
    nodes: dict[tuple[int, int], list[Node]] = {}
    for text in texts:
        nodes.setdefault((text.before, text.after), []).append(text.node)
    return tuple(Text(before, choice(same), after) for (before, after), same in nodes.items())


def paths(cutter: Cutter, texts: tuple[Text, ...], low: int, high: int | None) -> tuple[Text, ...]:
    """`low` (1 or more) to `high` of the texts, each next to ones that it allows.

    Raises:
        GrammarError: it isn't worked out in which order they may come.
    """
    atoms = _atoms(cutter, texts)
    if not atoms or (high is not None and high < low):
        return ()
    return _Paths(cutter, atoms).between(low, high)


@dataclass(frozen=True, slots=True)
class _Atom:
    """A text with the kinds that its first and its last character have."""

    text: Text
    first: int
    last: int


def _atoms(cutter: Cutter, texts: tuple[Text, ...]) -> list[_Atom]:
    """Texts cut so that each has its first and its last character of kinds alike to all."""
    signatures: dict[tuple[bool, ...], int] = {}
    for kind in range(1, N):
        bit = 1 << kind
        signature = tuple(bool(m & bit) for t in texts for m in (t.before, t.after))
        signatures[signature] = signatures.get(signature, 0) | bit
    atoms = []
    for text in texts:
        for first in signatures.values():
            for last in signatures.values():
                node = cutter.last(cutter.first(text.node, first), last)
                if node != NOTHING:
                    atoms.append(_Atom(Text(text.before, node, text.after), first, last))
    return atoms


class _Paths:
    def __init__(self, cutter: Cutter, atoms: list[_Atom]) -> None:
        self._cutter = cutter
        self._texts = [atom.text for atom in atoms]
        self._follows = [
            [bool(a.last & b.text.before and b.first & a.text.after) for b in atoms] for a in atoms
        ]

    def between(self, low: int, high: int | None) -> tuple[Text, ...]:
        follows = self._follows
        count = range(len(follows))
        firsts = [i for i in count if not any(follows[j][i] for j in count)]
        lasts = [i for i in count if not any(follows[i]) and i not in firsts]
        core = [i for i in count if i not in firsts and i not in lasts]
        inner = [*firsts, *core]
        if all(follows[i][j] for i in inner for j in core) and all(
            follows[i][j] for i in core for j in lasts
        ):
            return self._around_core(firsts, core, lasts, low, high)
        if high is None and low == 1:
            return self._closure()
        if high is None or high > MAX_UNROLLED:
            raise entangled()
        return self._unrolled(low, high)

    def _around_core(
        self, firsts: list[int], core: list[int], lasts: list[int], low: int, high: int | None
    ) -> tuple[Text, ...]:
        """Any of the core between at most one that only begins and one that only ends."""
        texts = self._texts
        body = choice(texts[i].node for i in core)

        def times(fewer: int) -> Node:
            if high is not None and high < fewer:
                return NOTHING
            return repeat(body, max(low - fewer, 0), None if high is None else high - fewer)

        out = []
        if low <= 1:
            out += [texts[i] for i in (*firsts, *lasts, *core)]
        # Those of the core differ in what may stand before and after the whole.
        for i in (*firsts, *core):
            for j in (*core, *lasts):
                middle = times(2)
                if not self._follows[i][j]:
                    rest = max(low - 2, 1)
                    too_few = high is not None and high - 2 < rest
                    middle = (
                        NOTHING
                        if too_few or not core
                        else repeat(body, rest, None if high is None else high - 2)
                    )
                node = sequence((texts[i].node, middle, texts[j].node))
                if node != NOTHING and (high is None or high >= 2):
                    out.append(Text(texts[i].before, node, texts[j].after))
        return merged(out)

    def _closure(self) -> tuple[Text, ...]:
        """All paths of one atom or more, by eliminating one atom after the other (Kleene)."""
        texts = self._texts
        count = range(len(texts))
        # Texts from atom i to atom j, without the text of i.
        step = [[texts[j].node if self._follows[i][j] else NOTHING for j in count] for i in count]
        for k in count:
            loop = repeat(step[k][k], 0, None)
            step = [
                [
                    self._cutter.counted(
                        choice((step[i][j], sequence((step[i][k], loop, step[k][j]))))
                    )
                    for j in count
                ]
                for i in count
            ]
        return merged(
            Text(a.before, node, b.after)
            for i, a in enumerate(texts)
            for j, b in enumerate(texts)
            for node in [sequence((a.node, choice((step[i][j], EMPTY if i == j else NOTHING))))]
            if node != NOTHING
        )

    def _unrolled(self, low: int, high: int) -> tuple[Text, ...]:
        texts = self._texts
        out: list[Text] = []
        ends = {(i, i): text.node for i, text in enumerate(texts)}
        for length in range(1, high + 1):
            if length >= low:
                out += [
                    Text(texts[i].before, node, texts[j].after) for (i, j), node in ends.items()
                ]
            longer: dict[tuple[int, int], list[Node]] = {}
            for (i, j), node in ends.items():
                for k, text in enumerate(texts):
                    if self._follows[j][k]:
                        longer.setdefault((i, k), []).append(sequence((node, text.node)))
            ends = {key: self._cutter.counted(choice(nodes)) for key, nodes in longer.items()}
        return merged(out)
