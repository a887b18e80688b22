"""The rows of a step as the arrays of a ragged batch.

Right after a forward pass the first call of every numpy function takes 5 to 10 us, because the pass has
pushed its code out of the processor's caches. So few are called here, and none at all in a step like the
one before.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as SequenceOf
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from stolon.kernels import RaggedBatch


class StepRows:
    """Accumulates the rows of a step. The slots of all of them are in the slot table already.

    Decode rows come first. They are runs of one row whose logits are wanted, so that for them `q_lens` and
    `outputs` need not be written down.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.starts: list[int] = []
        self.table_rows: list[int] = []
        self._q_lens: list[int] = []
        self._outputs: list[int] = []

    @property
    def _num_decode(self) -> int:
        return len(self.starts) - len(self._q_lens)

    @property
    def num_outputs(self) -> int:
        return self._num_decode + len(self._outputs)

    def add_decode(self, token: int, position: int, row: int) -> None:
        """A decode row; not after `add`."""
        self.ids.append(token)
        self.starts.append(position)
        self.table_rows.append(row)

    def add(self, tokens: list[int], start: int, row: int, outputs: int) -> None:
        """A run of rows from position `start`; logits are wanted of its last `outputs` rows."""
        self.ids += tokens
        self.starts.append(start)
        self.table_rows.append(row)
        self._q_lens.append(len(tokens))
        end = len(self.ids)
        self._outputs += range(end - outputs, end)

    def batch(
        self,
        slot_table: NDArray[np.int64],
        cut: tuple[list[int], list[NDArray[np.int64]]] | None = None,
    ) -> RaggedBatch:
        """The batch of these rows.

        Args:
            slot_table: ``[table_rows, max_context]``, kept.
            cut: which of the output rows are wanted, in this order, and the short lists of the last ones.
        """
        decode = self._num_decode
        q_lens = [1] * decode + self._q_lens
        kv_lens = [start + rows for start, rows in zip(self.starts, q_lens, strict=True)]
        positions = self.starts[:decode]
        view = slot_table.data
        slots: list[int] = [
            view[at] for at in zip(self.table_rows[:decode], positions, strict=True)
        ]
        others = zip(self.table_rows[decode:], self.starts[decode:], kv_lens[decode:], strict=True)
        for row, start, stop in others:
            positions += range(start, stop)
            slots += slot_table[row, start:stop].tolist()
        outputs = [*range(decode), *self._outputs]
        lists: list[NDArray[np.int64]] = []
        if cut is not None:
            order, lists = cut
            outputs = [outputs[at] for at in order]
        columns = (self.ids, positions, slots, self.table_rows, kv_lens, q_lens, outputs)
        values = array("q", list(chain.from_iterable(columns)))
        return _ragged(values, len(self.ids), len(q_lens), slot_table, lists)


class DecodeBatch:
    """The batch of a step of nothing but decode rows, one object and one set of arrays for every step.

    Args:
        rows: how many.
        slot_table: as in RaggedBatch.
    """

    def __init__(self, rows: int, slot_table: NDArray[np.int64]) -> None:
        self.rows = rows
        self._slots = slot_table.data
        self._values = array("q", [0] * (5 * rows) + [1] * rows + list(range(rows)))
        self._batch = _ragged(self._values, rows, rows, slot_table)

    def fill(self, step: StepRows) -> RaggedBatch:
        """Take the rows of a step; the batch of the step before turns into this one."""
        values, rows, slots = self._values, self.rows, self._slots
        ids, starts, table_rows = step.ids, step.starts, step.table_rows
        for i in range(rows):
            start, row = starts[i], table_rows[i]
            values[i] = ids[i]
            values[rows + i] = start
            values[2 * rows + i] = slots[row, start]
            values[3 * rows + i] = row
            values[4 * rows + i] = start + 1
        return self._batch


def _ragged(
    values: array[int],
    rows: int,
    runs: int,
    slot_table: NDArray[np.int64],
    short_lists: SequenceOf[NDArray[np.int64]] = (),
) -> RaggedBatch:
    """The batch whose arrays follow one another in `values`.

    Three of `rows` numbers: ids, positions, slots; three of `runs`: table rows, context lengths, row counts;
    the rest are output rows.
    """
    merged = np.frombuffer(values, np.int64)
    at = 3 * rows
    return RaggedBatch(
        input_ids=merged[:rows],
        positions=merged[rows : 2 * rows],
        write_slots=merged[2 * rows : at],
        table_rows=merged[at : at + runs],
        kv_lens=merged[at + runs : at + 2 * runs],
        q_lens=merged[at + 2 * runs : at + 3 * runs],
        output_rows=merged[at + 3 * runs :],
        slot_table=slot_table,
        short_lists=short_lists,
    )
