"""A full recount of the prefix tree and the slot pool, independent of their running counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stolon.errors import InternalError

from .node import Node, Slots

if TYPE_CHECKING:
    from .tree import PrefixTree


def check_tree(tree: PrefixTree, outside: Slots) -> None:
    """Raise InternalError at the first thing that is wrong; see `PrefixTree.check_integrity`."""
    tree.pool.check_integrity()
    nodes: list[Node] = []
    for namespace, root in tree._roots.items():
        _require(root.namespace == namespace, "a root is filed under another namespace")
        _require(root.parent is None and len(root.tokens) == 0, "a root has a parent or an edge")
        reached = [root]
        for node in reached:
            _check_node(node)
            reached.extend(node.children.values())
        nodes.extend(reached[1:])
    _check_counts(tree, nodes)
    _check_order(tree, nodes)
    _check_slots(tree, nodes, outside)


def _check_node(node: Node) -> None:
    _require(node.alive, "an evicted node is in the tree")
    _require(len(node.tokens) == len(node.slots), "an edge has more tokens than slots, or fewer")
    for first, child in node.children.items():
        _require(child.parent is node, "a child names another parent")
        _require(len(child.tokens) > 0, "an edge is empty")
        _require(int(child.tokens[0]) == first, f"child {first} begins with {child.tokens[:1]}")
    below = node.children.values()
    for name, held, inside in (
        ("leases", node.leases, sum(child.leases for child in below)),
        ("pins", node.pins, sum(child.pins for child in below)),
    ):
        _require(held >= inside >= 0, f"a node counts {held} {name}, its children {inside}")


def _check_counts(tree: PrefixTree, nodes: list[Node]) -> None:
    for name, kept, counted in (
        ("size", tree.size, sum(len(node.tokens) for node in nodes)),
        ("leased", tree.leased, sum(len(node.tokens) for node in nodes if node.leases)),
        ("pinned", tree.pinned, sum(len(node.tokens) for node in nodes if node.pins)),
    ):
        _require(kept == counted, f"{name} is kept as {kept} and counts as {counted}")


def _check_order(tree: PrefixTree, nodes: list[Node]) -> None:
    for pinned, order in enumerate(tree._order.classes):
        expected = {node for node in nodes if not node.leases and (node.pins > 0) == bool(pinned)}
        _require(set(order) == expected, "the eviction order does not hold the unleased nodes")
        place = {node: index for index, node in enumerate(order)}
        for node, index in place.items():
            before = place.get(node.parent, index + 1) if node.parent is not None else index + 1
            _require(index < before, "a node stands before its child in the eviction order")


def _check_slots(tree: PrefixTree, nodes: list[Node], outside: Slots) -> None:
    held = [tree.pool.free_slots(), np.asarray(outside, dtype=np.int64)]
    held.extend(node.slots for node in nodes)
    slots = np.concatenate(held)
    if len(slots) and (slots.min() < 0 or slots.max() >= tree.pool.num_slots):
        raise InternalError("a slot is held that is not in the pool")
    counts = np.bincount(slots, minlength=tree.pool.num_slots)
    for wrong, what in ((counts == 0, "lost"), (counts > 1, "held twice")):
        ids = np.flatnonzero(wrong)
        _require(len(ids) == 0, f"{len(ids)} slots are {what}, the first is {ids[:1]}")


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InternalError(f"prefix tree: {message}")
