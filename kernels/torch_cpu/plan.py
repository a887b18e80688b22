"""What attention needs of a step's layout, worked out once for all its layers.

Rows are attended in *groups*, one fused attention call each: decode rows of similar context length
together, padded to the longest; every longer run alone. Layers with a sliding window see shorter
contexts, so groups are made per window, when a layer first asks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stolon.kernels.ops import RaggedBatch

# A decode row joins a group if padding it to the group's longest context wastes at most this
# factor.
MAX_PADDING = 2
# Contexts up to this length are padded together whatever they waste: a call costs more than the
# padding.
SHORT_CONTEXT = 64


@dataclass(frozen=True, slots=True)
class Group:
    """Rows attended in one call.

    Attributes:
        rows: a slice of the step's rows, or int64 indices of them.
        runs: runs in the group, all of `q_len` rows.
        q_len: rows of each run.
        kv_len: context length, that of the longest run.
        span: (first, end) slots if there is one run and its slots are consecutive, else None.
        slots: int64 ``[runs * kv_len]`` slots to gather, None with `span`. Padding repeats a run's
            last slot.
        causal: one run whose rows are its whole context: plain causal attention, no mask.
        mask: bool, True where a row sees a slot: ``[runs, 1, 1, kv_len]`` for decode rows,
            ``[q_len, kv_len]`` for one run; None if all is seen, or with `causal`.
    """

    rows: slice | Tensor
    runs: int
    q_len: int
    kv_len: int
    span: tuple[int, int] | None
    slots: Tensor | None
    causal: bool
    mask: Tensor | None


class StepPlan:
    """A step's write slots and, per window, its groups."""

    def __init__(self, batch: RaggedBatch) -> None:
        self._batch = batch
        self._groups: dict[int | None, list[Group]] = {}
        self.write_slots = batch.write_slots
        self.write_span = consecutive(batch.write_slots)
        starts = [0]
        for q_len in batch.q_lens:
            starts.append(starts[-1] + q_len)
        self._starts = starts

    def groups(self, window: int | None) -> list[Group]:
        """The groups for layers with this window, covering every row once."""
        groups = self._groups.get(window)
        if groups is None:
            groups = self._groups[window] = self._make(window)
        return groups

    def _make(self, window: int | None) -> list[Group]:
        q_lens = self._batch.q_lens
        decode = [run for run, q_len in enumerate(q_lens) if q_len == 1]
        groups = [self._run_group(run, window) for run, q_len in enumerate(q_lens) if q_len > 1]
        for bucket in self._buckets(decode, window):
            if len(bucket) == 1:
                groups.append(self._run_group(bucket[0], window))
            else:
                groups.append(self._decode_group(bucket, window))
        return groups

    def _context(self, run: int, window: int | None) -> Tensor:
        """Slots that any row of the run sees, in order of position."""
        kv_len, q_len = self._batch.kv_lens[run], self._batch.q_lens[run]
        first = 0 if window is None else max(0, kv_len - q_len + 1 - window)
        return self._batch.slot_table[self._batch.table_rows[run], first:kv_len]

    def _buckets(self, runs: list[int], window: int | None) -> list[list[int]]:
        """Decode runs by similar context length; runs keep their row order within a bucket."""
        limit = self._batch.slot_table.shape[1] if window is None else window
        lengths = {run: min(self._batch.kv_lens[run], limit) for run in runs}
        buckets: list[list[int]] = []
        longest = 0
        for run in sorted(runs, key=lambda r: -lengths[r]):
            if not buckets or longest > max(SHORT_CONTEXT, MAX_PADDING * lengths[run]):
                buckets.append([])
                longest = lengths[run]
            buckets[-1].append(run)
        return [sorted(bucket) for bucket in buckets]

    def _run_group(self, run: int, window: int | None) -> Group:
        slots = self._context(run, window)
        q_len, kv_len = self._batch.q_lens[run], slots.shape[0]
        span = consecutive(slots)
        causal = 1 < q_len == kv_len and (window is None or window >= kv_len)
        mask = None
        if q_len > 1 and not causal:
            own = torch.arange(kv_len - q_len, kv_len).unsqueeze(1)
            other = torch.arange(kv_len).unsqueeze(0)
            mask = other <= own
            if window is not None:
                mask &= other > own - window
        return Group(
            rows=slice(self._starts[run], self._starts[run] + q_len),
            runs=1,
            q_len=q_len,
            kv_len=kv_len,
            span=span,
            slots=None if span else slots.contiguous(),
            causal=causal,
            mask=mask,
        )

    def _decode_group(self, runs: list[int], window: int | None) -> Group:
        contexts = [self._context(run, window) for run in runs]
        lengths = [context.shape[0] for context in contexts]
        longest = max(lengths)
        if min(lengths) == longest:
            slots, mask = torch.cat(contexts), None
        else:
            slots = torch.cat(
                [
                    part
                    for context, length in zip(contexts, lengths, strict=True)
                    for part in (context, context[-1:].expand(longest - length))
                ]
            )
            mask = torch.arange(longest).view(1, 1, 1, -1) < torch.tensor(lengths).view(-1, 1, 1, 1)
        rows = [self._starts[run] for run in runs]
        whole = rows[-1] - rows[0] == len(rows) - 1
        return Group(
            rows=slice(rows[0], rows[-1] + 1) if whole else torch.tensor(rows),
            runs=len(runs),
            q_len=1,
            kv_len=longest,
            span=None,
            slots=slots,
            causal=False,
            mask=mask,
        )


def consecutive(slots: Tensor) -> tuple[int, int] | None:
    """(first, end) if the slots are first, first + 1, …, end - 1, else None."""
    count = slots.shape[0]
    if count == 0:
        return None
    first, last = int(slots[0]), int(slots[-1])
    if last - first != count - 1:
        return None
    if count > 2 and not bool((slots[1:] - slots[:-1] == 1).all()):
        return None
    return first, last + 1
