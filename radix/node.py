"""A node of the prefix tree: one edge of tokens, their slots, and who holds it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Slots = NDArray[np.int64]


class Node:
    """The end of a cached prefix. Callers hold nodes as handles and read nothing but `length()`.

    A node never changes the prefix that it ends: when its edge is split, the new node is the upper
    part and this one stays the lower. The exception is trimming, which shortens a leaf that nobody
    leases.

    Attributes:
        parent: None for the root of a namespace. Kept when the node is evicted, so that a soft pin
            that outlives its node can still be taken off the path.
        tokens, slots: the edge from the parent to here, equally long; empty only at a root.
        children: by the first token of their edge.
        leases, pins: how many lease and pin handles end at or below this node.
        alive: still in the tree.
        namespace: key of the tree that a root belongs to (roots only).
    """

    __slots__ = (
        "alive",
        "children",
        "leases",
        "namespace",
        "parent",
        "pins",
        "slots",
        "tokens",
    )

    def __init__(
        self, parent: Node | None, tokens: Tokens, slots: Slots, *, namespace: Hashable = None
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.slots = slots
        self.children: dict[int, Node] = {}
        self.leases = 0
        self.pins = 0
        self.alive = True
        self.namespace = namespace

    def path(self) -> Iterator[Node]:
        """This node, its parent, and so on up to the root."""
        node: Node | None = self
        while node is not None:
            yield node
            node = node.parent

    def length(self) -> int:
        """Tokens from the root to the end of this node."""
        return sum(len(node.tokens) for node in self.path())


def new_root(namespace: Hashable) -> Node:
    """An empty tree for one namespace."""
    return Node(None, np.empty(0, np.int32), np.empty(0, np.int64), namespace=namespace)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two arrays share."""
    n = min(len(a), len(b))
    if a[:n].tobytes() == b[:n].tobytes():  # the usual case, in half the time
        return n
    return int((a[:n] != b[:n]).argmax())
