"""From a regex tree to the program that both automata run.

An instruction either matches a piece of text by a graph of bytes, or leads on without text. Counted
repetitions are not unrolled: a position in the program comes with the counts of the loops around it,
so ``.{0,10000}`` is three instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from stolon.constrained.fsm.utf8 import Edge, Graph, class_graph
from stolon.constrained.regex_ast import Chars, Choice, Literal, Node, Repeat, Sequence

__all__ = ["MAX_LOOPS", "Program", "TooLarge", "build_program"]

MATCH, SPLIT, ENTER, LOOP, ACCEPT = range(5)
MAX_LOOPS = 5  # counted repetitions within each other
MAX_INSTRUCTIONS = 50_000
MAX_NODES = 100_000
FAR = 1 << 40  # lengths are counted up to here

_Key = tuple[tuple[Edge, ...], bool]
_Int = npt.NDArray[np.int64]
_PIECE = 1024  # rows; about half a millisecond
_PARTS = 32


class TooLarge(Exception):
    """The tree is beyond the limits of a program."""


@dataclass(frozen=True, slots=True)
class Program:
    """Instructions and graphs of bytes, as tables.

    Attributes:
        start: where it begins; None if there is no text at all.
        code: int64 [instructions, 9]: operation, number of loops around, x, y, low, high (-1: none),
            shortest text to the end of the loop around or of all (in bytes), that loop (-1: none),
            shortest text of the body.
            MATCH: x graph node, y next. SPLIT: x to y of `targets`. ENTER and LOOP: x body, y exit.
        targets: int64, where splits lead.
        nodes: int64 [nodes, 3]: first and last (exclusive) of its edges, 1 if a text may end here.
        edges: int64 [edges, 3]: first byte, last byte, node.
    """

    start: int | None
    code: _Int
    targets: _Int
    nodes: _Int
    edges: _Int


def build_program(tree: Node, alphabet: frozenset[int]) -> Program:
    """The program of a tree, for texts that use only the bytes of `alphabet`.

    Every position of the program can reach the end. Raises TooLarge.
    """
    builder = _Builder(alphabet)
    try:
        accept = builder.emit(ACCEPT, 0, length=0, loop=-1)
        start = builder.node(tree, accept)
        return builder.finished(start)
    finally:
        builder.release()


class _Builder:
    def __init__(self, alphabet: frozenset[int]) -> None:
        self._missing = frozenset(range(256)) - alphabet
        # How many bytes below one are missing.
        self._gaps = [0, *accumulate(byte in self._missing for byte in range(256))]
        self._roots: dict[int, tuple[Graph, int | None]] = {}  # by identity
        self._code: list[list[int]] = []
        self._targets: list[int] = []
        self._nodes: list[_Key] = []
        # In parts, as one table of all would hold up other threads whenever it grows.
        self._numbers: list[dict[_Key, int]] = [{} for _ in range(_PARTS)]
        self._edges = 0
        self._more: list[int] = []  # shortest text from a node, by number; 0 at an end
        self._depth = 0
        self._loop = -1
        self._empties: dict[int, bool] = {}

    def emit(
        self,
        op: int,
        x: int = 0,
        y: int = 0,
        low: int = 0,
        high: int = 0,
        *,
        length: int,
        loop: int,
        body: int = 0,
    ) -> int:
        if len(self._code) >= MAX_INSTRUCTIONS:
            raise TooLarge("instructions")
        self._code.append([op, self._depth, x, y, low, high, min(length, FAR), loop, body])
        return len(self._code) - 1

    def finished(self, start: int | None) -> Program:
        nodes, edges = [], list[Edge]()
        for out, end in self._nodes:
            nodes.append((len(edges), len(edges) + len(out), int(end)))
            edges.extend(out)
        return Program(
            start,
            _table(self._code, 9),
            _table(self._targets, 1)[:, 0],
            _table(nodes, 3),
            _table(edges, 3),
        )

    def release(self) -> None:
        """Free what was built one by one: freeing many at once holds up other threads."""
        for numbers in self._numbers:
            numbers.clear()
        while self._nodes:
            self._nodes.pop()  # it may have hundreds of edges
        while self._code:
            del self._code[-_PIECE:]

    def node(self, node: Node, following: int) -> int | None:
        """Where to begin to read `node` and then go on at `following`; None without any text."""
        if isinstance(node, Chars):
            return self._match(self._import(class_graph(node.ranges)), following)
        if isinstance(node, Literal):
            return self._match(self._word(node.text.encode()), following)
        if isinstance(node, Sequence):
            at: int | None = following
            parts = node.parts
            end = len(parts)
            while end and at is not None:
                begin = end - 1
                while begin and _single(parts[begin]) and _single(parts[begin - 1]):
                    begin -= 1
                if end - begin > 1:
                    at = self._match(self._word(_spelled(parts[begin:end])), at)
                else:
                    at = self.node(parts[begin], at)
                end = begin
            return at
        if isinstance(node, Choice):
            return self._choice(node, following)
        return self._repeat(node, following)

    def _choice(self, node: Choice, following: int) -> int | None:
        words: list[bytes] = []
        starts: list[int | None] = []
        for option in node.options:
            text = _word(option)
            if text is None:
                starts.append(self.node(option, following))
            else:
                words.append(text)
        if words:
            starts.append(self._match(self._words(words), following))
        return self._split([start for start in starts if start is not None])

    def _split(self, starts: list[int]) -> int | None:
        if len(starts) <= 1:
            return starts[0] if starts else None
        begin = len(self._targets)
        self._targets.extend(starts)
        length = min(map(self._length, starts))
        return self.emit(
            SPLIT, begin, len(self._targets), length=length, loop=self._around(starts[0])
        )

    def _match(self, root: int | None, following: int) -> int | None:
        if root is None:
            return None
        length = self._more[root] + self._length(following)
        return self.emit(MATCH, root, following, length=length, loop=self._around(following))

    def _length(self, following: int) -> int:
        """Shortest text from there to the end of the loop whose body is being built."""
        return 0 if following == self._loop else self._code[following][6]

    def _around(self, following: int) -> int:
        return following if following == self._loop else self._code[following][7]

    def _repeat(self, node: Repeat, following: int) -> int | None:
        low, high = (0 if self._empty(node.node) else node.low), node.high
        if high == 0:
            return following
        if (low, high) == (0, 1):
            body = self.node(node.node, following)
            return following if body is None else self._either(body, following)
        if high is None and low <= 1:
            return self._star(node.node, following, least=low)
        return self._counted(node.node, low, high, following)

    def _either(self, body: int, following: int) -> int:
        begin = len(self._targets)
        self._targets.extend((body, following))
        return self.emit(
            SPLIT,
            begin,
            begin + 2,
            length=self._length(following),
            loop=self._around(following),
        )

    def _star(self, node: Node, following: int, *, least: int) -> int | None:
        split = self._either(following, following)
        slot = self._code[split][2]
        body = self.node(node, split)
        if body is None:
            return None if least else following
        self._targets[slot] = body
        return body if least else split

    def _counted(self, node: Node, low: int, high: int | None, following: int) -> int | None:
        if self._depth >= MAX_LOOPS:
            raise TooLarge("loops")
        empty = int(self._empty(node))
        length, around = self._length(following), self._around(following)
        outer = self._loop
        # The instruction after an iteration is one loop deeper than the exit.
        self._depth += 1
        loop = self.emit(
            LOOP, empty, following, low, -1 if high is None else high, length=0, loop=-1
        )
        self._loop = loop
        body = self.node(node, loop)
        self._loop = outer
        self._depth -= 1
        if body is None:
            return None if low else following
        least = 0 if empty else self._code[body][6]
        self._code[loop][2] = body
        # The loop's own way on, and what one more iteration takes at least.
        self._code[loop][6:] = [length, around, max(least, 1) if not empty else 0]
        return self.emit(
            ENTER,
            body,
            following,
            low,
            -1 if high is None else high,
            length=low * least + length,
            loop=around,
            body=empty,
        )

    def _empty(self, node: Node) -> bool:
        """Whether the empty text is one of the node's. Remembered: trees are nested."""
        if isinstance(node, (Chars, Literal)):
            return False
        known = self._empties.get(id(node))
        if known is None:
            if isinstance(node, Sequence):
                known = all(map(self._empty, node.parts))
            elif isinstance(node, Choice):
                known = any(map(self._empty, node.options))
            else:
                known = node.low == 0 or self._empty(node.node)
            self._empties[id(node)] = known
        return known

    def _import(self, graph: Graph) -> int | None:
        """A graph's root among the program's nodes; None if the alphabet spells none of it."""
        known = self._roots.get(id(graph))
        if known is not None:
            return known[1]
        numbers: list[int | None] = []
        for edges, end in graph:
            out: list[Edge] = []
            for low, high, to in edges:
                target = numbers[to]
                if target is None:
                    continue
                if self._gaps[low] == self._gaps[high + 1]:
                    out.append((low, high, target))
                else:
                    present = (b for b in range(low, high + 1) if b not in self._missing)
                    out.extend((b, b, target) for b in present)
            numbers.append(self._intern(tuple(out), end))
        self._roots[id(graph)] = (graph, numbers[-1])
        return numbers[-1]

    def _word(self, word: bytes) -> int | None:
        """The graph of one text."""
        if not self._missing.isdisjoint(word):
            return None
        at = self._intern((), True)
        for byte in reversed(word):
            assert at is not None
            at = self._intern(((byte, byte, at),), False)
        return at

    def _words(self, words: list[bytes]) -> int | None:
        """The graph of some texts, common beginnings and endings shared."""
        children: list[dict[int, int]] = [{}]
        ends = {0} if b"" in words else set[int]()
        try:
            for word in words:
                if not self._missing.isdisjoint(word):
                    continue
                at = 0
                for byte in word:
                    to = children[at].get(byte)
                    if to is None:
                        to = children[at][byte] = len(children)
                        children.append({})
                        if to > MAX_NODES * 4:
                            raise TooLarge("nodes")
                    at = to
                ends.add(at)
            numbers: list[int | None] = [None] * len(children)
            while children:
                to_nodes = children.pop().items()
                out = [(b, b, n) for b, c in sorted(to_nodes) if (n := numbers[c]) is not None]
                numbers[len(children)] = self._intern(tuple(out), len(children) in ends)
            return numbers[0]
        finally:
            while children:  # one by one: freeing many at once holds up other threads
                children.pop()

    def _intern(self, out: tuple[Edge, ...], end: bool) -> int | None:
        if not out and not end:
            return None
        key = (out, end)
        numbers = self._numbers[out[0][2] % _PARTS if out else 0]
        number = numbers.get(key)
        if number is None:
            number = numbers[key] = len(self._nodes)
            self._nodes.append(key)
            self._more.append(0 if end else 1 + min(self._more[to] for _, _, to in out))
            self._edges += len(out)
            if max(number, self._edges) > MAX_NODES:
                raise TooLarge("nodes")
        return number


def _single(node: Node) -> bool:
    return (
        isinstance(node, Chars) and len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1]
    )


def _spelled(parts: tuple[Node, ...]) -> bytes:
    return "".join(chr(p.ranges[0][0]) for p in parts if isinstance(p, Chars)).encode()


def _word(node: Node) -> bytes | None:
    """The text of a node that is one text, and not the empty one."""
    if isinstance(node, Literal):
        return node.text.encode()
    if isinstance(node, Sequence) and node.parts and all(map(_single, node.parts)):
        return _spelled(node.parts)
    return _spelled((node,)) if _single(node) else None


def _table(rows: list[Any], width: int) -> _Int:
    """The rows as a table. They are used up, in pieces: each piece holds the interpreter lock."""
    pieces = [
        np.array(rows[at : at + _PIECE], np.int64).reshape(-1, width)
        for at in range(0, max(len(rows), 1), _PIECE)
    ]
    while rows:
        del rows[-_PIECE:]
    return np.concatenate(pieces)
