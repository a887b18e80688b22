"""A language model whose logits are an exact function of the whole context, read back through the KV slots.

`HashRunner` keeps token ids where a real model keeps keys and values. A row's logits are drawn from a
generator seeded by the tokens found in the slots of its context. So any mistake with slots, sharing,
positions or retraction changes the output, and a correct engine gives, whatever it batches or reuses,
exactly what `expected` computes from the tokens alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stolon.kernels import RaggedBatch
from stolon.srt.build import SELECT_ROWS


def context_logits(tokens: Sequence[int], vocab: int) -> Tensor:
    """float32 ``[vocab]`` that depends on every token of the context."""
    digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.randn(vocab, generator=generator) * 3


def copying_logits(tokens: Sequence[int], vocab: int) -> Tensor:
    """The same, but mostly in favour of what followed the last tokens the time before."""
    logits = context_logits(tokens, vocab)
    if float(logits[0]) < -3.0:
        return logits
    tokens = list(tokens)
    likely = tokens[len(tokens) // 2]
    for length in (3, 1):
        found = [
            at for at in range(length, len(tokens)) if tokens[at - length : at] == tokens[-length:]
        ]
        if found:
            likely = tokens[found[-1]]
            break
    logits[likely] += 12.0
    return logits


class HashRunner:
    """Implements `Runner`. `before_forward` may raise, to test the fault barrier. `logits` is the model."""

    architecture = "hash"
    dtype = "float32"
    parameter_count = 0
    team = None
    row_invariant = True
    kv_token_bytes = 16

    def __init__(
        self, *, num_slots: int, context: int, vocab: int = 288, max_running: int = 16
    ) -> None:
        self.num_slots = num_slots
        self.vocab_size = vocab
        self.slot_table = np.zeros((max_running + SELECT_ROWS, context), np.int64)
        self.before_forward: Callable[[RaggedBatch], None] = lambda batch: None
        self.logits: Callable[[Sequence[int], int], Tensor] = context_logits
        self.rows = 0
        self.steps: list[int] = []
        self._kv = np.full((num_slots, 2), -1, np.int64)  # token, position

    def forward(self, batch: RaggedBatch) -> NDArray[np.float32]:
        self.before_forward(batch)
        slots = batch.write_slots
        if len(np.unique(slots)) != len(slots):
            raise AssertionError("two rows of a step write the same slot")
        self._kv[slots, 0] = batch.input_ids
        self._kv[slots, 1] = batch.positions
        self.rows += len(slots)
        self.steps.append(len(slots))
        wanted = set(batch.output_rows.tolist())
        logits: dict[int, NDArray[np.float32]] = {}
        row = 0
        runs = np.stack((batch.q_lens, batch.kv_lens, batch.table_rows), axis=1)
        for q_len, kv_len, table_row in runs.tolist():
            context = self._kv[batch.slot_table[table_row, :kv_len]]
            if not np.array_equal(context[:, 1], np.arange(kv_len)):
                raise AssertionError("a context's slots do not hold its positions in order")
            for i in range(q_len):
                if row in wanted:
                    seen = context[: kv_len - q_len + i + 1, 0]
                    logits[row] = self.logits(seen.tolist(), self.vocab_size).numpy()
                row += 1
        if not wanted:
            return np.empty((0, self.vocab_size), np.float32)
        rows = np.stack([logits[i] for i in batch.output_rows.tolist()])
        # Nobody may look at what was not asked for.
        first = len(rows) - len(batch.short_lists)
        for place, ids in enumerate(batch.short_lists, first):
            asked = rows[place, ids]
            rows[place] = np.nan
            rows[place, ids] = asked
        return rows
