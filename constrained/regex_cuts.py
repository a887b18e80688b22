"""Trees cut down to the texts that begin, or end, with a character of certain kinds."""

from __future__ import annotations

from stolon.constrained.regex_assertions import INNER, N, kind_ranges
from stolon.constrained.regex_ast import Chars, Choice, Node, Repeat, Sequence
from stolon.constrained.regex_build import (
    Ranges,
    chars,
    choice,
    intersect,
    nullable,
    repeat,
    sequence,
    union,
)
from stolon.errors import GrammarError

__all__ = ["Cutter", "entangled"]

MAX_WORK = 20_000


class Cutter:
    """Cuts the trees of one regex. Raises `entangled` when all of it together becomes too large."""

    def __init__(self) -> None:
        self._work = 0
        self._ranges = kind_ranges()

    def first(self, node: Node, kinds: int) -> Node:
        """The texts of `node` that begin with a character of `kinds`."""
        return self._outer(node, kinds, 1)

    def last(self, node: Node, kinds: int) -> Node:
        """The texts of `node` that end with a character of `kinds`."""
        return self._outer(node, kinds, -1)

    def counted(self, node: Node) -> Node:
        """`node`, its size counted as work."""
        self._work += _size(node, MAX_WORK)
        if self._work > MAX_WORK:
            raise entangled()
        return node

    def _outer(self, node: Node, kinds: int, way: int) -> Node:
        if kinds & INNER == INNER and not nullable(node):
            return node
        allowed = union(*(self._ranges[kind] for kind in range(1, N) if kinds >> kind & 1))
        return self.counted(self._cut(node, allowed, way))

    def _cut(self, node: Node, allowed: Ranges, way: int) -> Node:
        """The non-empty texts whose first (`way` 1) or last (-1) character is allowed."""
        self._work += 1
        if self._work > MAX_WORK:
            raise entangled()
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


def entangled() -> GrammarError:
    """The refusal of assertions in repetitions beyond what is worked out."""
    return GrammarError(
        "the regex has anchors or word boundaries in repetitions that can't be worked out",
        hint="move the anchor out of the repetition",
    )


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
