"""Where each running sequence's keys and values live: table rows, slots, and what the tree owns of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
from numpy.typing import NDArray

from stolon.errors import InternalError
from stolon.radix import Match, Node, PrefixTree, SlotPool
from stolon.srt.sequence import Sequence

RESERVE = 16
"""Slots that a decoding sequence takes at a time, so that neighbours in time are neighbours in memory. Fully
interleaved slots made a forward pass of 32 sequences about 9 % slower on its own (66 against 60 ms)."""


class KVSpace:
    """The pool, the tree and the slot table, kept consistent for the sequences that use them.

    Invariant: a slot is free in the pool, on an edge of the tree, or owned by exactly one attached
    sequence (positions `tree_len` to `held` of its table row) or by a selection under way.

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
        reserved = sum(seq.held - seq.claimed for seq in self._attached)
        return self.pool.num_free + self.tree.evictable + reserved

    def namespace(self, seq: Sequence) -> Hashable:
        """What, besides its tokens, identifies a cached prefix (promise P7)."""
        return (self.weights_version, seq.job.request.salt)

    def cached(self, seq: Sequence) -> int:
        """How many leading tokens of a waiting sequence could be reused; the last token is always computed,
        for its logits."""
        if seq.cached_at != self._version:
            seq.cached_at = self._version
            seq.cached_length = self._peek(seq)
        return seq.cached_length

    def unleased(self, seq: Sequence, cached: int) -> int:
        """How many of its `cached` tokens stop being evictable when a waiting sequence is attached."""
        return self.tree.unleased(self.namespace(seq), self._key(seq)[:cached])

    def _peek(self, seq: Sequence) -> int:
        if seq.job.request.prompt_logprobs is not None and not seq.job.prompt_reported:
            # The row before position `start` predicts it, so it is computed anew.
            limit = max(0, min(seq.job.request.prompt_logprobs.start, len(seq.tokens)) - 1)
        else:
            limit = len(seq.tokens) - 1
        return self.tree.peek(self.namespace(seq), self._key(seq)[:limit]) if limit else 0

    @staticmethod
    def _key(seq: Sequence) -> NDArray[np.int32]:
        if seq.key is None:
            seq.key = np.array(seq.tokens, np.int32)
        return seq.key

    def attach(self, seq: Sequence) -> None:
        """Give a waiting sequence a table row and the cached part of its prefix, leased."""
        cached = self.cached(seq)
        match = self.tree.match(self.namespace(seq), self._key(seq)[:cached])
        seq.key = None
        self.tree.lease(match.node)
        seq.node = match.node
        seq.row = self._rows.pop()
        self.table[seq.row, : match.length] = match.slots
        seq.computed = seq.tree_len = seq.claimed = seq.held = match.length
        self._attached.add(seq)

    def extend(self, seq: Sequence, n: int) -> bool:
        """Claim slots for the next n tokens of a sequence; False if there are not enough.

        A single token takes a reserve, as long as there is one for every sequence. Cached prefixes give way
        to it: evicting a slot for every token of every sequence would cost more than they are worth.
        """
        stop = seq.computed + n
        if stop <= seq.held:
            seq.claimed = stop
            return True
        self._drop_reserve(seq)
        slots: NDArray[np.int64] | None = None
        if n == 1 and self.pool.num_free + self.tree.evictable >= RESERVE * len(self._attached):
            slots = self.allocate(min(RESERVE, self.table.shape[1] - seq.held))
        if slots is None:
            slots = self.allocate(n)
        if slots is None:
            return False
        self.table[seq.row, seq.held : seq.held + len(slots)] = slots
        seq.held += len(slots)
        seq.claimed = stop
        return True

    def catch_up(self, seq: Sequence) -> Node | None:
        """Take over what the tree has by now of a prompt, but for its last token, which is computed for its
        logits. Returns the node where the prompt ends, if the tree has all of it.

        What a step under way or being built computes is in the tree too: see `share_ahead`.
        """
        if seq.tree_len < seq.computed or (seq.cached_at == self._version and seq.pending > 1):
            return None
        tokens = np.array(seq.tokens, np.int32)
        match = self.tree.match(self.namespace(seq), tokens)
        end = match.node if match.length == len(tokens) else None
        if end is not None:
            match = self.tree.match(self.namespace(seq), tokens[:-1])
        self._go_to(seq, match)
        return end

    def join(self, seq: Sequence) -> None:
        """Take over the last token too; `catch_up` found it."""
        self._go_to(seq, self.tree.match(self.namespace(seq), seq.tokens))

    def _go_to(self, seq: Sequence, match: Match) -> None:
        """Replace what a sequence has, all of it the tree's, by a match that is at least as long."""
        before, length = seq.computed, match.length
        if length <= before or seq.node is None:
            return
        self.tree.lease(match.node)
        self.tree.release(seq.node)
        self.pool.free(self.table[seq.row, before : seq.held].copy())
        self.table[seq.row, before:length] = match.slots[before:]
        seq.node = match.node
        seq.computed = seq.tree_len = seq.claimed = seq.held = length
        seq.count_cached(before, length)

    def share_ahead(self, seq: Sequence, stop: int) -> Node | None:
        """Give the tree what the step being built computes of a prompt, up to position `stop`: rows of the
        same step can attend to it. After a `catch_up` that found nothing of it in the tree.

        Returns where it ends; None if what stands before it is not in the tree either.
        """
        if seq.tree_len < seq.computed:
            return None
        self._insert(seq, stop)
        return seq.node

    def _drop_reserve(self, seq: Sequence) -> None:
        if seq.held > seq.claimed:
            self.pool.free(self.table[seq.row, seq.claimed : seq.held].copy())
            seq.held = seq.claimed

    def _reclaim(self) -> None:
        """Take all reserves back."""
        for seq in self._attached:
            self._drop_reserve(seq)

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

    def keep(self, seq: Sequence, length: int) -> None:
        """What a step wrote from position `length` on, at or beyond `computed`, are not the sequence's
        tokens, or not yet: those slots are a reserve again."""
        seq.computed = seq.claimed = length

    def rewind(self, seq: Sequence, length: int) -> None:
        """Forget the keys and values from position `length` on. Slots that the tree owns stay with it."""
        if length >= seq.computed:
            return
        self.pool.free(self.table[seq.row, max(length, seq.tree_len) : seq.held].copy())
        seq.computed = seq.claimed = seq.held = length
        seq.tree_len = min(seq.tree_len, length)

    def share(self, seq: Sequence) -> None:
        """Give everything computed so far to the tree, so that others can reuse it."""
        if seq.tree_len < seq.computed:
            self._insert(seq, seq.computed)

    def _insert(self, seq: Sequence, stop: int) -> None:
        """The tree takes over the slots of positions `tree_len` to `stop`."""
        if seq.node is None:
            raise InternalError("sharing a sequence that is not attached")
        inserted = self.tree.insert(
            self.namespace(seq),
            seq.tokens[:stop],
            self.table[seq.row, :stop],
            owned_from=seq.tree_len,
        )
        self._version += 1
        self.tree.lease(inserted.node)
        self.tree.release(seq.node)
        self.pool.free(inserted.duplicate)
        self.table[seq.row, :stop] = inserted.slots
        seq.node = inserted.node
        seq.tree_len = stop

    def detach(self, seq: Sequence) -> None:
        """Take back the row. What was computed stays in the tree, evictable."""
        if seq.node is None:
            return
        self.share(seq)
        self._drop_reserve(seq)
        self._attached.discard(seq)
        self.tree.release(seq.node)
        self._rows.append(seq.row)
        seq.node = None
        seq.row = -1
        seq.computed = seq.tree_len = seq.claimed = seq.held = 0

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
        owned = [self.table[seq.row, seq.tree_len : seq.held] for seq in attached if seq.row >= 0]
        self.tree.check_integrity(np.concatenate(owned) if owned else None)
