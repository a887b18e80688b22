"""From a regex tree to the program of an automaton."""

from __future__ import annotations

from stolon.constrained.fsm.byte_graphs import ByteGraphs
from stolon.constrained.fsm.program import (
    ACCEPT,
    ENTER,
    FAR,
    LOOP,
    MATCH,
    MAX_LOOPS,
    SPLIT,
    Program,
    TooLarge,
    clear,
    table,
)
from stolon.constrained.fsm.utf8 import class_graph
from stolon.constrained.regex_ast import Chars, Choice, Literal, Node, Repeat, Sequence

__all__ = ["build_program"]

MAX_INSTRUCTIONS = 50_000


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
    """Collects instructions, from the end of the text to its start: each needs to know what follows it."""

    def __init__(self, alphabet: frozenset[int]) -> None:
        self._graphs = ByteGraphs(alphabet)
        self._code: list[list[int]] = []
        self._targets: list[int] = []
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
        nodes, edges = self._graphs.tables()
        return Program(start, table(self._code, 9), table(self._targets, 1)[:, 0], nodes, edges)

    def release(self) -> None:
        """Free what was built."""
        self._graphs.release()
        clear(self._code)

    def node(self, node: Node, following: int) -> int | None:
        """Where to begin to read `node` and then go on at `following`; None without any text."""
        if isinstance(node, Chars):
            return self._match(self._graphs.add(class_graph(node.ranges)), following)
        if isinstance(node, Literal):
            return self._match(self._graphs.word(node.text.encode()), following)
        if isinstance(node, Sequence):
            at: int | None = following
            parts = node.parts
            end = len(parts)
            while end and at is not None:
                begin = end - 1
                while begin and _single(parts[begin]) and _single(parts[begin - 1]):
                    begin -= 1
                if end - begin > 1:
                    at = self._match(self._graphs.word(_spelled(parts[begin:end])), at)
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
            starts.append(self._match(self._graphs.words(words), following))
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
        length = self._graphs.shortest[root] + self._length(following)
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
