"""Where each running sequence's keys and values live: table rows, slots, and what the tree owns of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from stolon.errors import InternalError
from stolon.radix import PrefixTree, SlotPool
from stolon.srt.sequence import NO_SLOTS, Sequence

RESERVE = 16
"""Slots that a decoding sequence takes at a time, so that neighbours in time are neighbours in memory. Fully
interleaved slots made a forward pass of 32 sequences about 9 % slower on its own (66 against 60 ms)."""


class KVSpace:
    """The pool, the tree and the slot table, kept consistent for the sequences that use them.

    Invariant: a slot is free in the pool, on an edge of the tree, or owned by exactly one attached
    sequence (positions `tree_len` to `computed` of its table row, or its reserve) or by a selection
    under way.

    Args:
        table: int64 ``[rows, context]``, shared with the model runner: the slot of each position.
        spare_rows: rows kept back for the branches of selections; the others are for sequences.
    """

    def __init__(
        self, pool: SlotPool, tree: PrefixTree, table: NDArray[np.int64], *, spare_rows: int
    ) -> None:
        self.pool = pool
        self.tree = tree
        self.table = table
        self.weights_version = "0"
        self.evicted = 0
        self._version = 0  # of the tree's content
        self._attached: set[Sequence] = set()
        rows = table.shape[0] - spare_rows
        self._rows = list(range(rows - 1, -1, -1))
        self.spare_rows = list(range(rows, rows + spare_rows))

    @property
    def free_rows(self) -> int:
        return len(self._rows)

    @property
    def available(self) -> int:
        """Slots that could be had now, by evicting everything that nobody leases."""
        reserved = sum(len(seq.reserve) for seq in self._attached)
        return self.pool.num_free + self.tree.evictable + reserved

    def namespace(self, seq: Sequence) -> Hashable:
        """What, besides its tokens, identifies a cached prefix (promise P7)."""
        return (self.weights_version, seq.job.request.salt)

    def cached(self, seq: Sequence) -> int:
        """How many leading tokens could be reused; the last token is always computed, for its logits."""
        if seq.cached_at != self._version:
            seq.cached_at = self._version
            seq.cached_length = self._peek(seq)
        return seq.cached_length

    def _peek(self, seq: Sequence) -> int:
        if seq.job.request.prompt_logprobs is not None and not seq.job.prompt_reported:
            # The row before position `start` predicts it, so it is computed anew.
            limit = max(0, min(seq.job.request.prompt_logprobs.start, len(seq.tokens)) - 1)
        else:
            limit = len(seq.tokens) - 1
        return min(limit, self.tree.peek(self.namespace(seq), seq.tokens[:limit])) if limit else 0

    def attach(self, seq: Sequence) -> None:
        """Give a waiting sequence a table row and the cached part of its prefix, leased."""
        match = self.tree.match(self.namespace(seq), seq.tokens[: self.cached(seq)])
        self.tree.lease(match.node)
        seq.node = match.node
        seq.row = self._rows.pop()
        self.table[seq.row, : match.length] = match.slots
        seq.computed = seq.tree_len = match.length
        self._attached.add(seq)

    def extend(self, seq: Sequence, n: int) -> NDArray[np.int64] | None:
        """Slots for the next n tokens of a sequence; None if there are not enough.

        Single tokens come from a reserve of consecutive slots, as long as slots are free anyway.
        """
        if n == 1:
            if not len(seq.reserve) and self.pool.num_free >= RESERVE * len(self._attached):
                reserve = self.pool.alloc(RESERVE)
                if reserve is not None:
                    seq.reserve = reserve
            if len(seq.reserve):
                slot, seq.reserve = seq.reserve[:1], seq.reserve[1:]
                return slot
        return self.allocate(n)

    def _reclaim(self) -> None:
        """Take all reserves back."""
        for seq in self._attached:
            self.pool.free(seq.reserve)
            seq.reserve = NO_SLOTS

    def allocate(self, n: int) -> NDArray[np.int64] | None:
        """n slots, evicting what is least recently used if need be; None if there are not enough."""
        missing = n - self.pool.num_free
        if missing > self.tree.evictable:
            self._reclaim()
            missing = n - self.pool.num_free
        if missing > 0:
            if missing > self.tree.evictable:
                return None
            self.evicted += self.tree.evict(missing)
            self._version += 1
        return self.pool.alloc(n)

    def rewind(self, seq: Sequence, length: int) -> None:
        """Forget the keys and values from position `length` on. Slots that the tree owns stay with it."""
        if length >= seq.computed:
            return
        self.pool.free(self.table[seq.row, max(length, seq.tree_len) : seq.computed].copy())
        seq.computed = length
        seq.tree_len = min(seq.tree_len, length)

    def share(self, seq: Sequence) -> None:
        """Give everything computed so far to the tree, so that others can reuse it."""
        if seq.node is None:
            raise InternalError("sharing a sequence that is not attached")
        if seq.computed == seq.tree_len:
            return
        inserted = self.tree.insert(
            self.namespace(seq),
            seq.tokens[: seq.computed],
            self.table[seq.row, : seq.computed],
            owned_from=seq.tree_len,
        )
        self._version += 1
        self.tree.lease(inserted.node)
        self.tree.release(seq.node)
        self.pool.free(inserted.duplicate)
        self.table[seq.row, : seq.computed] = inserted.slots
        seq.node = inserted.node
        seq.tree_len = seq.computed

    def detach(self, seq: Sequence) -> None:
        """Take back the row. What was computed stays in the tree, evictable."""
        if seq.node is None:
            return
        self.share(seq)
        self.pool.free(seq.reserve)
        seq.reserve = NO_SLOTS
        self._attached.discard(seq)
        self.tree.release(seq.node)
        self._rows.append(seq.row)
        seq.node = None
        seq.row = -1
        seq.computed = seq.tree_len = 0

    def reset(self) -> None:
        """Forget everything: after a fault in a step, what the slots hold can't be trusted. No sequence may
        be attached any more."""
        self._version += 1
        self._attached.clear()
        self.pool = SlotPool(self.pool.num_slots)
        self.tree = PrefixTree(self.pool)
        self._rows = list(range(self.spare_rows[0] - 1, -1, -1))

    def flush(self) -> None:
        """Drop every cached prefix that nobody uses."""
        self._version += 1
        self.tree.clear()

    def check_integrity(self, attached: Iterable[Sequence]) -> None:
        """Every slot accounted for (promise P4). Raises InternalError with the detail."""
        owned = [seq.reserve for seq in self._attached]
        owned += [
            self.table[seq.row, seq.tree_len : seq.computed] for seq in attached if seq.row >= 0
        ]
        self.tree.check_integrity(np.concatenate(owned) if owned else None)
