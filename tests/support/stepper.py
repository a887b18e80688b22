"""Drive a `ModelRunner` by hand: sequences with explicit slots, steps with explicit runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from stolon.kernels import RaggedBatch
from stolon.srt.model_runner import ModelRunner


class Stepper:
    """Slots are handed out in a shuffled order unless `consecutive`, so that nothing relies on
    theirs."""

    def __init__(self, runner: ModelRunner, *, consecutive: bool = False) -> None:
        self.runner = runner
        count = runner.kv.num_slots
        order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
        self._free = (torch.arange(count) if consecutive else order).tolist()
        self.lengths: list[int] = []

    def open(self, *, share: tuple[int, int] | None = None) -> int:
        """A new sequence; `share` (sequence, length) starts it on the first slots of another."""
        row = len(self.lengths)
        length = 0
        if share is not None:
            other, length = share
            self.runner.slot_table[row, :length] = self.runner.slot_table[other, :length]
        self.lengths.append(length)
        return row

    def step(
        self, runs: Sequence[tuple[int, Sequence[int]]], outputs: Sequence[int] | None = None
    ) -> Tensor:
        """Extend sequences in one step. `outputs` are rows of the step; None wants all."""
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        for row, tokens in runs:
            start = self.lengths[row]
            for offset, token in enumerate(tokens):
                slot = self._free.pop(0)
                self.runner.slot_table[row, start + offset] = slot
                ids.append(token)
                positions.append(start + offset)
                slots.append(slot)
            self.lengths[row] = start + len(tokens)
        rows = range(len(ids)) if outputs is None else outputs
        logits = self.runner.forward(
            RaggedBatch(
                input_ids=np.array(ids, np.int64),
                positions=np.array(positions, np.int64),
                write_slots=np.array(slots, np.int64),
                q_lens=np.array([len(tokens) for _, tokens in runs], np.int64),
                kv_lens=np.array([self.lengths[row] for row, _ in runs], np.int64),
                slot_table=self.runner.slot_table,
                table_rows=np.array([row for row, _ in runs], np.int64),
                output_rows=np.array(list(rows), np.int64),
            )
        )
        return torch.from_numpy(logits.copy())
