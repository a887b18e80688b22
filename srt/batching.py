"""What a step computes: rows of known tokens, prompt chunks, decode rows and tries, as one ragged batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stolon.srt.drafting import Draft, Drafter
from stolon.srt.heads import Heads
from stolon.srt.kv_space import KVSpace
from stolon.srt.plan import Plan, Run, TrieRows
from stolon.srt.scheduler import GROWTH_TOKENS, Scheduler
from stolon.srt.selecting import GROUP_ROWS, Group, Selection
from stolon.srt.sequence import Sequence
from stolon.srt.step_rows import DecodeBatch, StepRows

PROMPT_LOGPROB_ROWS = 128
"""Rows of a prompt whose log-probs are wanted, per step; bounds the memory for logits."""


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
        drafter: Drafter,
        heads: Heads,
    ) -> None:
        self._heads = heads
        self._drafter = drafter
        self._scheduler = scheduler
        self._space = space
        self._step_tokens = step_tokens
        self._bos = bos
        self._decode = DecodeBatch(1, space.table)

    def plan(self) -> Plan:
        """Choose this step's rows: those about to generate first, then prompt chunks, oldest first."""
        plan = Plan()
        rows = StepRows()
        drafts = self._drafter.propose(self._scheduler.running)
        # One pending token each: never starved by long prompts.
        others = self._add_decode_rows(plan, rows, drafts)
        plan.decoding = len(plan.runs)
        mixed = bool(others)
        if mixed:
            others.sort(key=lambda seq: seq.pending > 1)
            while others:
                # What these share with a prompt of this step is in the tree now, so siblings join it.
                shared = self._add_others(plan, rows, others, drafts)
                others = self._scheduler.admit() if shared else []
        if not rows.ids:
            return plan
        cut = self._heads.cut(plan, rows.num_outputs) if plan.restricted else None
        if mixed or cut is not None:
            plan.batch = rows.batch(self._space.table, cut)
        else:
            if len(rows.ids) != self._decode.rows:
                self._decode = DecodeBatch(len(rows.ids), self._space.table)
            plan.batch = self._decode.fill(rows)
        return plan

    def _add_decode_rows(
        self, plan: Plan, rows: StepRows, drafts: dict[Sequence, Draft]
    ) -> list[Sequence]:
        """Add the rows of sequences that sample a token each step; returns the other sequences.

        The usual case, taken out because it is all that many steps consist of.
        """
        others: list[Sequence] = []
        runs, extend = plan.runs, self._space.extend
        for seq in self._scheduler.running.copy():
            start = seq.computed
            generation = seq.generation
            if (
                generation is None
                or len(seq.tokens) - start != 1
                or start < seq.known
                or seq in drafts
                or seq.job.request.prompt_logprobs is not None
            ):
                others.append(seq)
                continue
            if seq.row < 0:
                continue  # retracted for an earlier one
            if not extend(seq, 1) and not self._grow(seq, 1, {run.seq for run in runs}, plan):
                continue
            run = Run(seq, start, start + 1, len(runs), 1)
            runs.append(run)
            if generation.restricted:
                plan.restricted.append(run)
            rows.add_decode(seq.tokens[start], start, seq.row)
        return others

    def _add_others(
        self, plan: Plan, rows: StepRows, order: list[Sequence], drafts: dict[Sequence, Draft]
    ) -> bool:
        """Add the rows of these sequences, as far as the step goes. Returns whether others may join it."""
        planned = {run.seq for run in plan.runs}
        budget = self._step_tokens - len(rows.ids)
        shared = False
        for seq in order:
            if seq.row < 0:
                continue  # retracted for an earlier one
            held_back = seq.held_back
            prompt = seq.prefilling and not self._wants_prompt_logprobs(seq)
            end = self._space.catch_up(seq) if prompt else None
            joined = None
            if end is not None and not held_back and seq not in drafts:
                joined = plan.ends.get(end)
            if joined is not None:
                self._space.join(seq)
            pending = seq.pending
            if held_back and pending <= 1:
                plan.held_back.append(seq)
                continue
            if pending == 0 and joined is None and not self._ready_for_trie(seq):
                self._space.rewind(seq, len(seq.tokens) - 1)
                pending = 1
            wanted = pending if pending <= 1 else min(pending - held_back, budget)
            if self._wants_prompt_logprobs(seq):
                wanted = min(wanted, PROMPT_LOGPROB_ROWS)
            if wanted <= 0 and pending:
                continue
            draft = drafts.get(seq) if wanted == pending else None
            if draft is not None:
                draft = self._make_room(seq, wanted, draft, budget)
            if wanted and draft is None and not self._grow(seq, wanted, planned, plan):
                continue
            planned.add(seq)
            budget -= wanted
            if draft is not None:
                budget -= len(draft.tokens)
            if joined is not None:
                plan.runs.append(Run(seq, seq.computed, seq.computed, joined, 1))
                plan.shared.add(joined)
            elif wanted:
                run = self._add_run(plan, rows, seq, wanted, draft)
                if prompt and end is None:
                    end = self._space.share_ahead(seq, run.stop)
                    shared |= end is not None
                if end is not None and run.outputs:
                    plan.ends[end] = run.first_output
            if wanted == pending and seq.at_select is not None:
                self._add_trie(plan, rows, seq, planned)
        if shared:
            self._scheduler.wake()
        return shared and budget > 0

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

    def _make_room(self, seq: Sequence, wanted: int, draft: Draft, budget: int) -> Draft | None:
        """Slots for a sequence's tokens and as much of a draft as there is room for, unasked of anybody."""
        promised = GROWTH_TOKENS * len(self._scheduler.running)
        room = min(budget, self._space.available - promised) - wanted
        if room <= 0 or self._wants_prompt_logprobs(seq):
            return None
        draft = Draft(draft.tokens[:room], draft.certain)
        return draft if self._space.extend(seq, wanted + len(draft.tokens)) else None

    def _add_run(
        self, plan: Plan, rows: StepRows, seq: Sequence, wanted: int, draft: Draft | None = None
    ) -> Run:
        start, stop = seq.computed, seq.computed + wanted
        outputs = 0
        if self._wants_prompt_logprobs(seq):
            outputs = wanted
        elif stop == len(seq.tokens) and (seq.generation is not None or seq.step is not None):
            outputs = 1
        run = Run(seq, start, stop, rows.num_outputs, outputs)
        plan.runs.append(run)
        tokens = seq.tokens[start:stop]
        if draft is not None:
            run.draft = draft
            tokens += draft.tokens
            outputs += len(draft.tokens)
        elif (
            outputs == 1
            and seq.generation is not None
            and seq.generation.restricted
            and seq.job.request.prompt_logprobs is None
        ):
            plan.restricted.append(run)
        rows.add(tokens, start, seq.row, outputs)
        return run

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

    def _add_trie(self, plan: Plan, rows: StepRows, seq: Sequence, planned: set[Sequence]) -> None:
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
