"""What a step computes: rows of known tokens, prompt chunks, decode rows and tries, as one ragged batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from stolon.kernels import RaggedBatch
from stolon.srt.kv_space import KVSpace
from stolon.srt.scheduler import Scheduler
from stolon.srt.selecting import GROUP_ROWS, Group, Selection
from stolon.srt.sequence import Sequence

PROMPT_LOGPROB_ROWS = 128
"""Rows of a prompt whose log-probs are wanted, per step; bounds the memory for logits."""


@dataclass(slots=True)
class Run:
    """Rows that extend one sequence by the tokens at positions `start` to `stop`.

    `first_output` is the first of its output rows; `outputs` their number (0, 1, or all rows of a prompt
    whose log-probs are wanted).
    """

    seq: Sequence
    start: int
    stop: int
    first_output: int = 0
    outputs: int = 0

    @property
    def last_output(self) -> int:
        """The output row of the run's last token."""
        return self.first_output + self.outputs - 1


@dataclass(slots=True)
class TrieRows:
    """A selection's group in this step: its output rows and the slots to give back after it."""

    seq: Sequence
    group: Group
    first_output: int
    slots: NDArray[np.int64]
    rows: list[int]


@dataclass(slots=True)
class Plan:
    """One step."""

    runs: list[Run] = field(default_factory=list)
    tries: list[TrieRows] = field(default_factory=list)
    stuck: list[Sequence] = field(default_factory=list)
    """Sequences that can't grow although they are alone: the pool is too small for them."""
    batch: RaggedBatch | None = None


class Batcher:
    """Builds plans.

    Args:
        step_tokens: most rows in a step (decode rows are always admitted).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        space: KVSpace,
        *,
        step_tokens: int,
        bos: int | None,
    ) -> None:
        self._scheduler = scheduler
        self._space = space
        self._step_tokens = step_tokens
        self._bos = bos

    def plan(self) -> Plan:
        """Choose this step's rows: those about to generate first, then prompt chunks, oldest first."""
        plan = Plan()
        rows = _Rows()
        # One pending token each: never starved by long prompts.
        others = self._add_decode_rows(plan, rows)
        if others:
            self._add_others(plan, rows, sorted(others, key=lambda seq: seq.pending > 1))
        if rows.ids:
            plan.batch = rows.batch(self._space.table)
        return plan

    def _add_decode_rows(self, plan: Plan, rows: _Rows) -> list[Sequence]:
        """Add the rows of sequences that sample a token each step; returns the other sequences.

        The usual case, taken out because it is all that many steps consist of.
        """
        others: list[Sequence] = []
        runs, extend = plan.runs, self._space.extend
        for seq in self._scheduler.running.copy():
            start = seq.computed
            if (
                seq.generation is None
                or len(seq.tokens) - start != 1
                or seq.job.request.prompt_logprobs is not None
            ):
                others.append(seq)
                continue
            if seq.row < 0:
                continue  # retracted for an earlier one
            if not extend(seq, 1) and not self._grow(seq, 1, {run.seq for run in runs}, plan):
                continue
            runs.append(Run(seq, start, start + 1, len(runs), 1))
            rows.add_decode(seq.tokens[start], start, seq.row)
        return others

    def _add_others(self, plan: Plan, rows: _Rows, order: list[Sequence]) -> None:
        planned = {run.seq for run in plan.runs}
        budget = self._step_tokens - len(planned)
        for seq in order:
            if seq.row < 0:
                continue  # retracted for an earlier one
            pending = seq.pending
            if pending == 0 and not self._ready_for_trie(seq):
                self._space.rewind(seq, len(seq.tokens) - 1)
                pending = 1
            wanted = pending if pending <= 1 else min(pending, budget)
            if self._wants_prompt_logprobs(seq):
                wanted = min(wanted, PROMPT_LOGPROB_ROWS)
            if wanted <= 0 and pending:
                continue
            if wanted and not self._grow(seq, wanted, planned, plan):
                continue
            planned.add(seq)
            budget -= wanted
            if wanted:
                self._add_run(plan, rows, seq, wanted)
            if wanted == pending and seq.at_select is not None:
                self._add_trie(plan, rows, seq, planned)

    @staticmethod
    def _wants_prompt_logprobs(seq: Sequence) -> bool:
        request = seq.job.request
        return (
            request.prompt_logprobs is not None
            and not seq.job.prompt_reported
            and seq.computed < seq.prompt_len
        )

    @staticmethod
    def _ready_for_trie(seq: Sequence) -> bool:
        """The context's last row is done already; only further groups of choices remain."""
        return seq.selection is not None and seq.selection.root is not None

    def _grow(self, seq: Sequence, wanted: int, planned: set[Sequence], plan: Plan) -> bool:
        """Slots for the next `wanted` tokens, retracting others if need be."""
        while not self._space.extend(seq, wanted):
            if not self._scheduler.retract_for(seq, planned):
                if planned:
                    self._scheduler.retract(seq)
                else:
                    plan.stuck.append(seq)
                return False
        return True

    def _add_run(self, plan: Plan, rows: _Rows, seq: Sequence, wanted: int) -> None:
        start, stop = seq.computed, seq.computed + wanted
        outputs = 0
        if self._wants_prompt_logprobs(seq):
            outputs = wanted
        elif stop == len(seq.tokens) and (seq.generation is not None or seq.step is not None):
            outputs = 1
        plan.runs.append(Run(seq, start, stop, rows.num_outputs, outputs))
        rows.add(seq.tokens[start:stop], start, seq.row, outputs)

    def _place_group(
        self, plan: Plan, planned: set[Sequence], seq: Sequence, selection: Selection, runs: int
    ) -> tuple[Group, NDArray[np.int64]] | None:
        """The next group of choices that fits the spare table rows and the pool, and its slots.

        None leaves the group to a later step: either another selection uses the spare rows now, or
        sequences of this step hold the slots, or `seq` is stuck (and is said so in the plan).
        """
        limit = GROUP_ROWS
        while (group := selection.next_group(limit, runs)) is not None:
            if len(group.trie.runs) > runs:
                return None
            slots = self._space.allocate(group.trie.rows)
            if slots is not None:
                return group, slots
            if self._scheduler.retract_for(seq, planned):
                continue
            if len(group.members) == 1:
                if planned == {seq}:
                    plan.stuck.append(seq)
                return None
            limit = group.trie.rows // 2
        return None

    def _add_trie(self, plan: Plan, rows: _Rows, seq: Sequence, planned: set[Sequence]) -> None:
        """Add rows for the next group of choices, as far as spare rows and slots allow."""
        step = seq.at_select
        if step is None:
            return
        if seq.selection is None:
            seq.selection = Selection(step.choices, step.select.method, self._bos)
        used = sum(len(trie.rows) for trie in plan.tries)
        spare = self._space.spare_rows[used:]
        placed = self._place_group(plan, planned, seq, seq.selection, len(spare))
        if placed is None:
            return
        group, slots = placed
        context = len(seq.tokens) if group.conditional else 0
        trie = TrieRows(seq, group, rows.num_outputs, slots, spare[: len(group.trie.runs)])
        table = self._space.table
        for run, row in zip(group.trie.runs, trie.rows, strict=True):
            begin = context + run.start
            own = slots[run.first_row : run.first_row + len(run.tokens)]
            if run.parent >= 0:
                table[row, :begin] = table[trie.rows[run.parent], :begin]
            else:
                table[row, :begin] = table[seq.row, :begin]
            table[row, begin : begin + len(own)] = own
            rows.add(run.tokens, begin, row, len(own))
        plan.tries.append(trie)


class _Rows:
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

    def batch(self, slot_table: NDArray[np.int64]) -> RaggedBatch:
        decode = self._num_decode
        q_lens = [1] * decode + self._q_lens
        kv_lens = [start + rows for start, rows in zip(self.starts, q_lens, strict=True)]
        if not self._q_lens:
            positions = self.starts
            slots = list(map(slot_table.item, self.table_rows, self.starts))
        else:
            positions, slots = [], []
            for row, start, stop in zip(self.table_rows, self.starts, kv_lens, strict=True):
                positions += range(start, stop)
                slots += slot_table[row, start:stop].tolist()
        outputs = [*range(decode), *self._outputs]
        arrays = _arrays(
            input_ids=self.ids,
            positions=positions,
            write_slots=slots,
            q_lens=q_lens,
            kv_lens=kv_lens,
            table_rows=self.table_rows,
            output_rows=outputs,
        )
        return RaggedBatch(slot_table=slot_table, **arrays)


def _arrays(**columns: list[int]) -> dict[str, NDArray[np.int64]]:
    """Each column as an array, all made in one go.

    Right after a forward pass the first call of every numpy function takes 5 to 10 us, because the pass has
    pushed its code out of the processor's caches. So few are called.
    """
    merged = np.array(list(chain.from_iterable(columns.values())), np.int64)
    arrays, stop = {}, 0
    for name, column in columns.items():
        start, stop = stop, stop + len(column)
        arrays[name] = merged[start:stop]
    return arrays
