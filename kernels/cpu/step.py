"""One native call a step: a recorded program, run on batch after batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import stolon.kernels.cpu._native as _native
from stolon.kernels.ops import RaggedBatch
from stolon.kernels.pages import mapped_zeros

Floats = NDArray[np.float32]

PATIENCE = 4
"""Batches that may leave half of the logits' buffer unused before it shrinks."""


class NativeStep:
    """A step of a model as one native call. The logits lie in one buffer, reused by every call.

    A batch that comes again, with other numbers in the same arrays, is not taken apart again. The buffer
    grows to what a step needs, and gives back what it took for more rows once others need half of it.
    """

    def __init__(self, program: _native.Program, vocab: int) -> None:
        self._program = program
        self._buffer = mapped_zeros((1, vocab), np.float32)
        self._half_used = 0  # batches in a row that need at most half of the buffer
        self._batch: RaggedBatch | None = None
        self._arguments: tuple[_native.Step, tuple[()], tuple[Floats]]

    def __call__(self, batch: RaggedBatch) -> Floats:
        if batch is not self._batch:
            self._prepare(batch)
        arguments = self._arguments
        self._program.run(*arguments)
        return arguments[2][0]

    def _prepare(self, batch: RaggedBatch) -> None:
        rows = len(batch.output_rows)
        self._half_used = self._half_used + 1 if 0 < 2 * rows <= len(self._buffer) else 0
        if rows > len(self._buffer) or self._half_used == PATIENCE:
            self._buffer = mapped_zeros((rows, self._buffer.shape[1]), np.float32)
            self._half_used = 0
        self._batch = None  # until the new one has proved good
        self._arguments = native_step(batch), (), (self._buffer[:rows],)
        self._batch = batch


def native_step(batch: RaggedBatch) -> _native.Step:
    return _native.Step(
        batch.input_ids,
        batch.positions,
        batch.write_slots,
        batch.q_lens,
        batch.kv_lens,
        batch.slot_table,
        batch.table_rows,
        batch.output_rows,
        batch.short_lists,
    )
