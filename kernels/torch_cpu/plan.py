"""What attention needs of a step's layout, worked out once for all its layers.

Runs are attended in *groups*: decode rows of similar context length together, padded to the longest;
every longer run alone, in blocks of rows. What a row sees depends on a layer's window, so groups are
made per kind of attention, when a layer first asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from stolon.kernels.ops import AttentionSpec, RaggedBatch

# A decode row joins a group if padding it to the group's longest context wastes at most this
# factor.
MAX_PADDING = 2
# Contexts up to this length are padded together whatever they waste: a call costs more than the
# padding.
SHORT_CONTEXT = 64
# Query rows a call: a block computes no scores beyond its own last row, or before its first window.
QUERY_BLOCK = 128


@dataclass(frozen=True, slots=True)
class Block:
    """Query rows attended in one call.

    Attributes:
        rows: of each run in the group.
        context: slots, by their place in the group's context, that any of these rows sees.
        mask: what to add to scores, 0 or -inf, broadcast over ``[runs, kv_heads, rows * share,
            slots]`` where query ``row * share + i`` is the row's i-th head on a kv head; None if
            every row sees every slot.
    """

    rows: slice
    context: slice
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Group:
    """Runs whose keys and values are fetched together.

    Attributes:
        rows: a slice of the step's rows, or int64 indices of them.
        runs: runs in the group, all of `q_len` rows.
        q_len: rows of each run.
        kv_len: context length, that of the longest run.
        slots: a slice if there is one run and its slots are consecutive, else int64 ``[runs *
            kv_len]``. Padding repeats a run's last slot.
        blocks: cover the rows of a run, in order.
    """

    rows: slice | Tensor
    runs: int
    q_len: int
    kv_len: int
    slots: slice | Tensor
    blocks: list[Block]


@dataclass(frozen=True, slots=True, eq=False)
class Rotary:
    """Cosines, and sines negated in the first half: float32 ``[positions, head_dim]``, or of a step
    ``[T, 1, head_dim]``."""

    cos: Tensor
    sin: Tensor


class StepPlan:
    """A step's arrays as tensors and, per kind of attention, its groups.

    Args:
        dtype: of activations, so of masks.
    """

    def __init__(self, batch: RaggedBatch, dtype: torch.dtype) -> None:
        self.input_ids = torch.from_numpy(batch.input_ids)
        self.output_rows = torch.from_numpy(batch.output_rows)
        self._positions = torch.from_numpy(batch.positions)
        self._q_lens: list[int] = batch.q_lens.tolist()
        self._kv_lens: list[int] = batch.kv_lens.tolist()
        self._slot_table = torch.from_numpy(batch.slot_table)
        self._table_rows: list[int] = batch.table_rows.tolist()
        self._dtype = dtype
        self._groups: dict[tuple[int | None, int], list[Group]] = {}
        self._rotary: dict[Rotary, Rotary] = {}
        write_slots = torch.from_numpy(batch.write_slots)
        self._write_slots: slice | Tensor = consecutive(write_slots) or write_slots
        self._starts = list(accumulate(self._q_lens, initial=0))

    def write(self, cache: Tensor, rows: Tensor) -> None:
        """Write ``[T, kv_heads, head_dim]`` to the step's slots of a cache."""
        if isinstance(self._write_slots, slice):
            cache[self._write_slots] = rows
        else:
            cache.index_copy_(0, self._write_slots, rows)

    def rotary_rows(self, table: Rotary) -> Rotary:
        """The table's rows at the step's positions."""
        rows = self._rotary.get(table)
        if rows is None:
            cos, sin = (t.index_select(0, self._positions) for t in (table.cos, table.sin))
            rows = self._rotary[table] = Rotary(cos.unsqueeze(1), sin.unsqueeze(1))
        return rows

    def groups(self, spec: AttentionSpec) -> list[Group]:
        """The groups for layers of this kind, covering every row once."""
        share = spec.num_heads // spec.num_kv_heads
        key = (spec.window, share)
        groups = self._groups.get(key)
        if groups is None:
            groups = self._groups[key] = self._make(spec.window, share)
        return groups

    def _make(self, window: int | None, share: int) -> list[Group]:
        q_lens = self._q_lens
        decode = [run for run, q_len in enumerate(q_lens) if q_len == 1]
        groups = [
            self._run_group(run, window, share) for run, q_len in enumerate(q_lens) if q_len > 1
        ]
        for bucket in self._buckets(decode, window):
            if len(bucket) == 1:
                groups.append(self._run_group(bucket[0], window, share))
            else:
                groups.append(self._decode_group(bucket, window))
        return groups

    def _context(self, run: int, window: int | None) -> Tensor:
        """Slots that any row of the run sees, in order of position."""
        kv_len, q_len = self._kv_lens[run], self._q_lens[run]
        first = 0 if window is None else max(0, kv_len - q_len + 1 - window)
        return self._slot_table[self._table_rows[run], first:kv_len]

    def _buckets(self, runs: list[int], window: int | None) -> list[list[int]]:
        """Decode runs by similar context length; runs keep their row order within a bucket."""
        limit = self._slot_table.shape[1] if window is None else window
        lengths = {run: min(self._kv_lens[run], limit) for run in runs}
        buckets: list[list[int]] = []
        longest = 0
        for run in sorted(runs, key=lambda r: -lengths[r]):
            if not buckets or longest > max(SHORT_CONTEXT, MAX_PADDING * lengths[run]):
                buckets.append([])
                longest = lengths[run]
            buckets[-1].append(run)
        return [sorted(bucket) for bucket in buckets]

    def _run_group(self, run: int, window: int | None, share: int) -> Group:
        slots = self._context(run, window)
        q_len, kv_len = self._q_lens[run], slots.shape[0]
        return Group(
            rows=slice(self._starts[run], self._starts[run] + q_len),
            runs=1,
            q_len=q_len,
            kv_len=kv_len,
            slots=consecutive(slots) or slots.contiguous(),
            blocks=[
                self._block(first, min(first + QUERY_BLOCK, q_len), kv_len - q_len, window, share)
                for first in range(0, q_len, QUERY_BLOCK)
            ],
        )

    def _block(self, first: int, end: int, offset: int, window: int | None, share: int) -> Block:
        """Rows first to end of a run whose row i stands at place `offset` + i of its context."""
        low = 0 if window is None else max(0, offset + first + 1 - window)
        context = slice(low, offset + end)
        if end - first == 1:
            return Block(slice(first, end), context, None)
        own = torch.arange(offset + first, offset + end).unsqueeze(1)
        other = torch.arange(context.start, context.stop).unsqueeze(0)
        hidden = other > own
        if window is not None:
            hidden |= other <= own - window
        mask = self._mask(hidden).repeat_interleave(share, dim=0)
        return Block(slice(first, end), context, mask)

    def _mask(self, hidden: Tensor) -> Tensor:
        return torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))

    def _decode_group(self, runs: list[int], window: int | None) -> Group:
        contexts = [self._context(run, window) for run in runs]
        lengths = torch.tensor([context.shape[0] for context in contexts])
        longest = int(lengths.max())
        if int(lengths.min()) == longest:
            slots, mask = torch.cat(contexts), None
        else:
            slots = torch.cat(
                [
                    part
                    for context in contexts
                    for part in (context, context[-1:].expand(longest - context.shape[0]))
                ]
            )
            mask = self._mask(torch.arange(longest) >= lengths.view(-1, 1, 1, 1))
        rows = [self._starts[run] for run in runs]
        whole = rows[-1] - rows[0] == len(rows) - 1
        return Group(
            rows=slice(rows[0], rows[-1] + 1) if whole else torch.tensor(rows),
            runs=len(runs),
            q_len=1,
            kv_len=longest,
            slots=slots,
            blocks=[Block(slice(0, 1), slice(0, longest), mask)],
        )


def consecutive(slots: Tensor) -> slice | None:
    """The slots as a slice if each is the one after the one before it, else None."""
    count = slots.shape[0]
    if count == 0:
        return None
    first, last = int(slots[0]), int(slots[-1])
    if last - first != count - 1:
        return None
    if count > 2 and not bool((slots[1:] - slots[:-1] == 1).all()):
        return None
    return slice(first, last + 1)
