"""Who runs: the queue, admission by cache benefit with ageing, hold-back of siblings, retraction."""

from __future__ import annotations

import time
from collections import deque

import numpy as np

from stolon.srt.job import SHARED_TOKENS, Job
from stolon.srt.kv_space import KVSpace
from stolon.srt.sequence import Account, Sequence

GROWTH_TOKENS = 16
"""Room that each running sequence is promised before another is admitted."""
MAX_AGE = 32
"""Passed over this often, a sequence is admitted before any with a better cached prefix."""
WINDOW = 64
"""How many waiting sequences are compared; those behind them wait in order of arrival."""


class Scheduler:
    """The waiting and the running sequences of one engine.

    Args:
        max_running: upper bound on sequences in a step.
    """

    def __init__(self, space: KVSpace, *, max_running: int) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.retractions = 0
        self._space = space
        self._max_running = max_running
        self._changed = False

    def add(self, job: Job) -> None:
        """Queue all samples of a job."""
        for sample in range(job.request.n):
            seq = Sequence(job, sample, [])
            seq.account = Account(job.submitted)
            seq.enter_known()
            seq.prompt_len = seq.known
            self.waiting.append(seq)
        self._changed = True

    def of_job(self, job: Job) -> list[Sequence]:
        """The samples of a job that are still here."""
        return [seq for seq in (*self.running, *self.waiting) if seq.job is job]

    def wake(self) -> None:
        """Something was freed or cached: admission is worth trying again."""
        self._changed = True

    def clear(self) -> None:
        """Drop all sequences without touching their slots; the space is reset next."""
        for seq in self.running:
            seq.node = None
            seq.row = -1
        self.running.clear()
        self.waiting.clear()

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is; its KV stays cached."""
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self._space.detach(seq)
        self._changed = True

    def admit(self) -> list[Sequence]:
        """Move waiting sequences to running while there is room for them; returns those."""
        admitted: list[Sequence] = []
        if self._changed and self.waiting and self._room():
            prefilling: dict[bytes, list[Sequence]] = {}
            for seq in self.running:
                if seq.prefilling:
                    prefilling.setdefault(seq.job.head, []).append(seq)
            while self.waiting and self._room():
                chosen = self._choose(prefilling)
                if chosen is None:
                    break
                self.waiting.remove(chosen)
                self._start(chosen)
                admitted.append(chosen)
                prefilling.setdefault(chosen.job.head, []).append(chosen)
        self._changed = False
        return admitted

    def _room(self) -> bool:
        return len(self.running) < self._max_running and self._space.free_rows > 0

    def _start(self, seq: Sequence) -> None:
        self._space.attach(seq)
        self.running.append(seq)
        if seq.retractions == 0:
            seq.account.queue_time = time.perf_counter() - seq.account.started
            seq.account.cached = seq.prompt_cached = min(seq.computed, seq.literals)
        seq.counted = max(seq.counted, seq.computed)
        for other in self.waiting:
            other.waited += 1

    def _choose(self, prefilling: dict[bytes, list[Sequence]]) -> Sequence | None:
        """The next to admit: priority, then age, then the longest cached prefix, then arrival.

        `prefilling` are the running sequences that still compute known tokens, by the head of their job.
        """
        best: Sequence | None = None
        best_key: tuple[int, bool, int] | None = None
        for seq in list(self.waiting)[:WINDOW]:
            cached = self._space.cached(seq)
            if self._sibling_ahead(seq, cached, prefilling):
                continue
            key = (seq.job.request.priority, seq.waited >= MAX_AGE, cached)
            if best_key is None or key > best_key:
                best, best_key = seq, key
        if best is None or best_key is None or not self._fits(best, best_key[2]):
            return None
        return best

    def _sibling_ahead(
        self, seq: Sequence, cached: int, prefilling: dict[bytes, list[Sequence]]
    ) -> bool:
        """Whether a running sequence is computing a prefix that this one could soon reuse."""
        if seq.job.request.prompt_logprobs is not None and not seq.job.prompt_reported:
            return any(other.job is seq.job for other in self.running)
        siblings = prefilling.get(seq.job.head)
        end = cached + SHARED_TOKENS
        if siblings is None or len(seq.tokens) <= end:
            return False
        namespace = self._space.namespace(seq)
        missing = seq.job.prompt[cached:end].tobytes()
        for other in siblings:
            # Most siblings in a wide fork differ right after what is cached: whole prompts are
            # compared only where it would be worth waiting.
            if other.job.prompt[cached:end].tobytes() != missing:
                continue
            if self._space.namespace(other) != namespace:
                continue
            shared = min(_common_prefix(seq.job.prompt, other.job.prompt), len(seq.tokens) - 1)
            if shared - cached >= SHARED_TOKENS and shared > other.tree_len:
                return True
        return False

    def _fits(self, seq: Sequence, cached: int) -> bool:
        need = len(seq.tokens) - cached + GROWTH_TOKENS * 4 ** min(seq.retractions, 4)
        promised = sum(other.pending + GROWTH_TOKENS for other in self.running)
        # What others don't lease of the cached part stops being evictable, so it can't be counted as room.
        room = self._space.available - self._space.unleased(seq, cached) - promised
        return need <= room or not self.running

    def retract_for(self, seq: Sequence, planned: set[Sequence]) -> bool:
        """Send the least advanced running sequence back to the queue, to free its slots.

        Sequences in this step's plan stay. Returns False if there is none but `seq` itself.
        """
        candidates = [other for other in self.running if other is not seq and other not in planned]
        if not candidates:
            return False
        self.retract(min(reversed(candidates), key=_advance))
        return True

    def retract(self, seq: Sequence) -> None:
        """Send a sequence back to the head of the queue. Everything it needs to go on exactly is kept."""
        self.running.remove(seq)
        self._space.detach(seq)
        seq.retractions += 1
        self.retractions += 1
        if seq.selection is not None:
            seq.selection = None
        # Its own tokens are now a prompt like any other.
        seq.known = len(seq.tokens)
        self.waiting.appendleft(seq)


def _advance(seq: Sequence) -> int:
    return len(seq.tokens) - seq.prompt_len


def _common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length
