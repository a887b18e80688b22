"""The prefix tree: which token prefixes have their keys and values in the cache, and in which
slots.

One radix tree a namespace (weights version, adapter, salt); keys are token ids, compared one by
one. As in RadixAttention (arXiv 2312.07104), sequences that share a prefix share its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stolon.errors import InternalError

from .integrity import check_tree
from .node import Node, Slots, Tokens, common_prefix, new_root
from .order import EvictionOrder
from .pool import SlotPool


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix: `slots` int64 ``[length]``; `node` ends exactly there."""

    length: int
    slots: Slots
    node: Node


@dataclass(frozen=True, slots=True)
class Inserted:
    """What became of an inserted sequence.

    Attributes:
        node: ends exactly at the sequence's end.
        slots: int64, the tree's slots for the whole sequence; read the context from these from now
            on.
        duplicate: int64, the caller's slots of tokens that the tree had already; the caller frees
            them.
    """

    node: Node
    slots: Slots
    duplicate: Slots


class PrefixTree:
    """Finds, keeps and evicts cached prefixes. Single-threaded: the scheduler's loop owns it.

    A node returned by `match` or `insert` is only safe until the next call that can evict or split,
    unless it is leased first.
    """

    def __init__(self, pool: SlotPool) -> None:
        self.pool = pool
        self._roots: dict[Hashable, Node] = {}
        self._order = EvictionOrder()
        self._size = 0
        self._leased = 0
        self._pinned = 0

    @property
    def size(self) -> int:
        """Tokens in the tree."""
        return self._size

    @property
    def leased(self) -> int:
        """Tokens under a lease."""
        return self._leased

    @property
    def pinned(self) -> int:
        """Tokens under a soft pin, leased or not."""
        return self._pinned

    @property
    def evictable(self) -> int:
        """Tokens that `evict` could free now, softly pinned ones included."""
        return self._size - self._leased

    @property
    def namespaces(self) -> tuple[Hashable, ...]:
        """The namespaces that hold something, in order of their creation."""
        return tuple(self._roots)

    # Finding

    def match(self, namespace: Hashable, tokens: ArrayLike, *, limit: int | None = None) -> Match:
        """The longest cached prefix of `tokens` ``[n]``, up to `limit` tokens. Counts as a use."""
        wanted = _as_tokens(tokens)[:limit]
        node, found = self._descend(self._root(namespace), wanted)
        self._order.use_path(node)
        parts = [part.slots for part in node.path()]
        return Match(found, np.concatenate(parts[::-1]), node)

    def peek(self, namespace: Hashable, tokens: ArrayLike) -> int:
        """Length of the longest cached prefix. Changes nothing: no split, no use."""
        return sum(shared for _, shared in self._look(namespace, tokens))

    def unleased(self, namespace: Hashable, tokens: ArrayLike) -> int:
        """How many tokens of the longest cached prefix nobody leases: leasing it makes so many fewer
        evictable."""
        return sum(shared for node, shared in self._look(namespace, tokens) if node.leases == 0)

    def _look(self, namespace: Hashable, tokens: ArrayLike) -> Iterator[tuple[Node, int]]:
        """The nodes of the longest cached prefix, and how many of their tokens belong to it."""
        node = self._roots.get(namespace)
        wanted = _as_tokens(tokens)
        found = 0
        while node is not None and found < len(wanted):
            node = node.children.get(int(wanted[found]))
            if node is not None:
                shared = common_prefix(node.tokens, wanted[found:])
                yield node, shared
                found += shared
                if shared < len(node.tokens):
                    break

    # Holding

    def lease(self, node: Node) -> None:
        """Keep the path to `node` from being evicted until as many `release` calls."""
        _require_alive(node, "lease")
        for part in node.path():
            part.leases += 1
            if part.leases == 1:
                self._leased += len(part.tokens)
                self._order.discard(part)

    def release(self, node: Node) -> None:
        """Give one lease on `node` back. Raises InternalError when there is none."""
        _require_alive(node, "release")
        inside = sum(child.leases for child in node.children.values())
        if node.leases <= inside:
            raise InternalError("releasing a lease that was not taken")
        for part in node.path():
            part.leases -= 1
            if part.leases == 0:
                self._leased -= len(part.tokens)
                self._order.use(part)
        self._drop_empty_root(part)

    def pin(self, node: Node) -> None:
        """Ask that the path to `node` is evicted only after everything unpinned is gone."""
        _require_alive(node, "pin")
        for part in node.path():
            if part.pins == 0:
                self._order.discard(part)
                self._pinned += len(part.tokens)
            part.pins += 1
            self._order.use(part)

    def unpin(self, node: Node) -> None:
        """Take one pin off; fine on a node that was evicted since it was pinned."""
        for part in node.path():
            if part.pins == 0:
                raise InternalError("unpinning a node that is not pinned")
            last = part.pins == 1 and part.alive
            if last:
                self._order.discard(part)
                self._pinned -= len(part.tokens)
            part.pins -= 1
            if last:
                self._order.use(part)
        self._drop_empty_root(part)

    # Growing

    def insert(
        self, namespace: Hashable, tokens: ArrayLike, slots: Slots, *, owned_from: int
    ) -> Inserted:
        """Put a sequence in: `slots` ``[n]`` hold the keys and values of `tokens` ``[n]``.

        The slots of the first `owned_from` tokens belong to the tree already: they came from a
        match, and are leased. The tree takes over the slots of the tokens that it lacks. Where it
        has tokens past `owned_from` (another sequence was first) it keeps its own slots, and the
        caller's are returned as `duplicate`. Raises InternalError, and changes nothing, if the
        owned part is not what the tree holds.
        """
        wanted = _as_tokens(tokens)
        if len(slots) != len(wanted) or not 0 <= owned_from <= len(wanted):
            raise InternalError(
                f"inserting {len(wanted)} tokens with {len(slots)} slots, {owned_from} owned"
            )
        node, found = self._descend(self._root(namespace), wanted)
        mine = np.concatenate([part.slots for part in node.path()][::-1])
        if not np.array_equal(mine[:owned_from], slots[:owned_from]):
            self._order.use_path(node)
            raise InternalError("the owned part of an inserted sequence is not what the tree holds")
        theirs = np.asarray(slots[owned_from:found], dtype=np.int64)
        duplicate = theirs[theirs != mine[owned_from:]]
        if found < len(wanted):
            fresh = np.array(slots[found:], dtype=np.int64)
            leaf = Node(node, wanted[found:].copy(), fresh)
            node.children[int(wanted[found])] = leaf
            self._size += len(fresh)
            mine = np.concatenate([mine, fresh])
            node = leaf
        self._order.use_path(node)
        return Inserted(node, mine, duplicate)

    # Shrinking

    def evict(self, n: int) -> int:
        """Free ``min(n, evictable)`` slots to the pool; returns how many that were.

        Least recently used leaves go first; the last one is trimmed from its end.
        """
        freed: list[Slots] = []
        missing = n
        while missing > 0:
            leaf = self._order.first()
            if leaf is None:
                break
            if len(leaf.tokens) > missing:
                keep = len(leaf.tokens) - missing
                freed.append(leaf.slots[keep:])
                leaf.tokens = leaf.tokens[:keep].copy()
                leaf.slots = leaf.slots[:keep].copy()
                self._count_removed(leaf, missing)
                missing = 0
            else:
                freed.append(leaf.slots)
                missing -= len(leaf.slots)
                self._remove(leaf)
        return self._free(freed)

    def clear(self) -> int:
        """Evict everything that nobody leases; returns the number of slots freed."""
        return self.drop_namespace(lambda _: True)

    def drop_namespace(self, predicate: Callable[[Hashable], bool]) -> int:
        """Evict, in every namespace that `predicate` picks, all that nobody leases, pins or not."""
        freed: list[Slots] = []
        for namespace in [key for key in self._roots if predicate(key)]:
            root = self._roots[namespace]
            preorder = [root]
            for node in preorder:
                preorder.extend(node.children.values())
            for node in reversed(preorder):
                if node.parent is not None and node.leases == 0:
                    freed.append(node.slots)
                    self._remove(node)
            self._drop_empty_root(root)
        return self._free(freed)

    def check_integrity(self, outside: Slots | None = None) -> None:
        """Raise InternalError, with detail, unless every count and link is right.

        Every slot must be exactly once in the free list, on an edge, or in `outside` (slots that
        live sequences own; None says there are none). O(size): for tests and idle moments.
        """
        check_tree(self, np.empty(0, np.int64) if outside is None else outside)

    # Inside

    def _root(self, namespace: Hashable) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = new_root(namespace)
        return root

    def _descend(self, root: Node, wanted: Tokens) -> tuple[Node, int]:
        """Walk down as far as `wanted` goes, splitting the last edge; the caller marks it used."""
        node, found = root, 0
        while found < len(wanted):
            child = node.children.get(int(wanted[found]))
            if child is None:
                break
            shared = common_prefix(child.tokens, wanted[found:])
            found += shared
            if shared < len(child.tokens):
                return self._split(child, shared), found
            node = child
        return node, found

    def _split(self, lower: Node, at: int) -> Node:
        """Put a new node `at` tokens into the edge of `lower`, which keeps the end of the edge.

        Copies, rather than views, so that an evicted half gives its memory back. All handles below
        the edge run through both halves. The new node is not in the eviction order yet: the caller
        marks it used.
        """
        parent = lower.parent
        if parent is None:
            raise InternalError("a root has no edge to split")
        upper = Node(parent, lower.tokens[:at].copy(), lower.slots[:at].copy())
        upper.leases, upper.pins = lower.leases, lower.pins
        parent.children[int(upper.tokens[0])] = upper
        lower.tokens, lower.slots = lower.tokens[at:].copy(), lower.slots[at:].copy()
        lower.parent = upper
        upper.children[int(lower.tokens[0])] = lower
        return upper

    def _remove(self, leaf: Node) -> None:
        parent = leaf.parent
        if parent is None or leaf.children or leaf.leases:
            raise InternalError("evicting a node that is in use")
        del parent.children[int(leaf.tokens[0])]
        self._order.discard(leaf)
        leaf.alive = False
        self._count_removed(leaf, len(leaf.tokens))
        self._drop_empty_root(parent)

    def _count_removed(self, node: Node, tokens: int) -> None:
        self._size -= tokens
        if node.pins:
            self._pinned -= tokens

    def _drop_empty_root(self, node: Node) -> None:
        if node.parent is None and not (node.children or node.leases or node.pins) and node.alive:
            node.alive = False
            del self._roots[node.namespace]

    def _free(self, parts: list[Slots]) -> int:
        if not parts:
            return 0
        slots = np.concatenate(parts)
        self.pool.free(slots)
        return len(slots)


def _as_tokens(tokens: ArrayLike) -> Tokens:
    return np.asarray(tokens, dtype=np.int32)


def _require_alive(node: Node, action: str) -> None:
    if not node.alive:
        raise InternalError(f"can't {action} a node that was evicted")
