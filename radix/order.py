"""The order of eviction: least recently used first, softly pinned nodes after all others.

It holds every node that nobody leases, in two classes, unpinned and pinned. A node is used when it
is matched, inserted, pinned, unpinned or released; its path is then moved to the end of its class,
*deepest first*. So within a class a child always stands before its parent, and the first node of
the order is always a leaf: finding what to evict costs O(1), with no scan and no clock.
"""

from __future__ import annotations

from collections import OrderedDict

from .node import Node


class EvictionOrder:
    """The unleased nodes, least recently used first.

    Attributes:
        classes: the unpinned nodes, and the pinned ones; each in order of use.
    """

    def __init__(self) -> None:
        self.classes: tuple[OrderedDict[Node, None], OrderedDict[Node, None]] = (
            OrderedDict(),
            OrderedDict(),
        )

    def first(self) -> Node | None:
        """The leaf to evict next; None when everything is leased."""
        unpinned, pinned = self.classes
        return next(iter(unpinned or pinned), None)

    def use_path(self, node: Node) -> None:
        """Make a path the most recently used."""
        for part in node.path():
            self.use(part)

    def use(self, node: Node) -> None:
        """Move a node to the end of its class, unless it is leased or a root."""
        if node.leases == 0 and node.parent is not None:
            order = self.classes[node.pins > 0]
            order[node] = None
            order.move_to_end(node)

    def discard(self, node: Node) -> None:
        """Take a node out. To be called before its pins change, as they name its class."""
        self.classes[node.pins > 0].pop(node, None)
