"""What a step computes: rows of known tokens, prompt chunks, decode rows and tries, as one ragged batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
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
        slot_table: int64 ``[rows, context]`` tensor that shares memory with the space's table.
        step_tokens: most rows in a step (decode rows are always admitted).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        space: KVSpace,
        slot_table: torch.Tensor,
        *,
        step_tokens: int,
        bos: int | None,
    ) -> None:
        self._scheduler = scheduler
        self._space = space
        self._slot_table = slot_table
        self._step_tokens = step_tokens
        self._bos = bos

    def plan(self) -> Plan:
        """Choose this step's rows: those about to generate first, then prompt chunks, oldest first."""
        plan = Plan()
        planned: set[Sequence] = set()
        budget = self._step_tokens
        rows = _Rows()
        # One pending token each: never starved by long prompts.
        order = sorted(self._scheduler.running, key=lambda seq: seq.pending > 1)
        for seq in order:
            if seq.row < 0:
                continue  # retracted for an earlier one
            if seq.pending == 0 and not self._ready_for_trie(seq):
                self._space.rewind(seq, len(seq.tokens) - 1)
            wanted = min(seq.pending, max(1, budget) if seq.pending == 1 else budget)
            if self._wants_prompt_logprobs(seq):
                wanted = min(wanted, PROMPT_LOGPROB_ROWS)
            if wanted <= 0 and seq.pending:
                continue
            if wanted and not self._grow(seq, wanted, planned, plan):
                continue
            planned.add(seq)
            budget -= wanted
            if wanted:
                self._add_run(plan, rows, seq, wanted)
            if seq.at_select is not None and seq.computed + wanted == len(seq.tokens):
                self._add_trie(plan, rows, seq, planned)
        if rows.q_lens:
            plan.batch = rows.batch(self._slot_table)
        return plan

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
        while (slots := self._space.extend(seq, wanted)) is None:
            if not self._scheduler.retract_for(seq, planned):
                if planned:
                    self._scheduler.retract(seq)
                else:
                    plan.stuck.append(seq)
                return False
        self._space.table[seq.row, seq.computed : seq.computed + wanted] = slots
        return True

    def _add_run(self, plan: Plan, rows: _Rows, seq: Sequence, wanted: int) -> None:
        start, stop = seq.computed, seq.computed + wanted
        run = Run(seq, start, stop, first_output=rows.num_outputs)
        if self._wants_prompt_logprobs(seq):
            run.outputs = wanted
        elif stop == len(seq.tokens) and (seq.at_gen is not None or seq.at_select is not None):
            run.outputs = 1
        rows.add(
            seq.tokens[start:stop],
            start,
            self._space.table[seq.row, start:stop],
            seq.row,
            outputs=run.outputs,
        )
        plan.runs.append(run)

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
            rows.add(run.tokens, begin, own, row, outputs=len(own))
        plan.tries.append(trie)


class _Rows:
    """Accumulates the rows of a step."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.positions: list[NDArray[np.int64]] = []
        self.slots: list[NDArray[np.int64]] = []
        self.q_lens: list[int] = []
        self.kv_lens: list[int] = []
        self.table_rows: list[int] = []
        self.outputs: list[int] = []

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def add(
        self,
        tokens: list[int],
        start: int,
        slots: NDArray[np.int64],
        row: int,
        *,
        outputs: int,
    ) -> None:
        """A run of rows from position `start`; logits are wanted of its last `outputs` rows."""
        self.ids.extend(tokens)
        self.positions.append(np.arange(start, start + len(tokens)))
        self.slots.append(slots)
        self.q_lens.append(len(tokens))
        self.kv_lens.append(start + len(tokens))
        self.table_rows.append(row)
        end = len(self.ids)
        self.outputs.extend(range(end - outputs, end))

    def batch(self, slot_table: torch.Tensor) -> RaggedBatch:
        return RaggedBatch(
            input_ids=torch.tensor(self.ids, dtype=torch.int64),
            positions=torch.from_numpy(np.concatenate(self.positions)),
            write_slots=torch.from_numpy(np.concatenate(self.slots)),
            q_lens=self.q_lens,
            kv_lens=self.kv_lens,
            slot_table=slot_table,
            table_rows=self.table_rows,
            output_rows=torch.tensor(self.outputs, dtype=torch.int64),
        )
