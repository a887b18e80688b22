"""The graphs of bytes of a program: all their nodes in one table, equal ones once."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stolon.constrained.fsm.program import TooLarge, table
from stolon.constrained.fsm.utf8 import Edge, Graph

__all__ = ["ByteGraphs"]

MAX_NODES = 100_000

_Key = tuple[tuple[Edge, ...], bool]
_Int = npt.NDArray[np.int64]
_PARTS = 32


class ByteGraphs:
    """Nodes, each named by its number; edges lead to smaller ones. Texts of a root use only the alphabet.

    Every node can reach an end. Adding raises TooLarge at the limit.

    Attributes:
        shortest: bytes of a shortest text from a node, by number; 0 at an end.
    """

    def __init__(self, alphabet: frozenset[int]) -> None:
        self._missing = frozenset(range(256)) - alphabet
        # How many bytes below one are missing.
        self._gaps = [0, *accumulate(byte in self._missing for byte in range(256))]
        self._roots: dict[int, tuple[Graph, int | None]] = {}  # by identity
        self._nodes: list[_Key] = []
        # In parts, as one table of all would hold up other threads whenever it grows.
        self._numbers: list[dict[_Key, int]] = [{} for _ in range(_PARTS)]
        self._edges = 0
        self.shortest: list[int] = []

    def add(self, graph: Graph) -> int | None:
        """The root of a graph; None if the alphabet spells none of it."""
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

    def word(self, word: bytes) -> int | None:
        """The graph of one text."""
        if not self._missing.isdisjoint(word):
            return None
        at = self._intern((), True)
        for byte in reversed(word):
            assert at is not None
            at = self._intern(((byte, byte, at),), False)
        return at

    def words(self, words: list[bytes]) -> int | None:
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
            self.shortest.append(0 if end else 1 + min(self.shortest[to] for _, _, to in out))
            self._edges += len(out)
            if max(number, self._edges) > MAX_NODES:
                raise TooLarge("nodes")
        return number

    def tables(self) -> tuple[_Int, _Int]:
        """The nodes and the edges, as a `Program` has them."""
        nodes, edges = [], list[Edge]()
        for out, end in self._nodes:
            nodes.append((len(edges), len(edges) + len(out), int(end)))
            edges.extend(out)
        return table(nodes, 3), table(edges, 3)

    def release(self) -> None:
        """Free the nodes one by one: freeing many at once holds up other threads."""
        for numbers in self._numbers:
            numbers.clear()
        while self._nodes:
            self._nodes.pop()  # it may have hundreds of edges
