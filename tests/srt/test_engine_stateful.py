"""Random programs of requests on a small pool: whatever happens, outputs are exact and no slot is lost.

The rules admit, extend, fork, abort and evict in any order, and the model often repeats itself, so that
drafts are accepted and rejected. It is a function of its context (support.hash_model), so the output
that a finished request must have can be computed from its tokens.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.engines import hash_engine
from support.hash_model import HashRunner, copying_logits

from stolon.srt.protocol import (
    Event,
    Failed,
    Gen,
    GenResult,
    Request,
    SampleDone,
    Sampling,
    SegmentDone,
    Select,
    SelectResult,
    Tokens,
)
from stolon.srt.speculation import StepCost

_KNOWN: dict[tuple[int, ...], int] = {}


def next_token(context: list[int]) -> int:
    key = tuple(context)
    if key not in _KNOWN:
        _KNOWN[key] = int(torch.argmax(copying_logits(context, 288)))
    return _KNOWN[key]


class Pending:
    """A submitted request and what came of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.events: list[Event] = []
        self.done = threading.Event()
        self.aborted = False
        self._open = request.n

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._open -= isinstance(event, SampleDone)
        if not self._open or isinstance(event, Failed):
            self.done.set()


class EngineMachine(RuleBasedStateMachine):
    """Random admits, extensions, forks, aborts and cache flushes."""

    @initialize(
        slots=st.integers(96, 400),
        step_tokens=st.sampled_from([3, 16, 512]),
        max_running=st.integers(1, 8),
    )
    def start(self, slots: int, step_tokens: int, max_running: int) -> None:
        runner = HashRunner(num_slots=slots, context=90, max_running=max_running)
        runner.logits = copying_logits
        # What a row costs does not depend on the machine that tests.
        self.growth, StepCost.growth = StepCost.growth, lambda cost, rows: 1 / (rows + 9)  # type: ignore[method-assign]
        self.engine = hash_engine(runner=runner, step_tokens=step_tokens)
        self.branches: list[list[int]] = [[1, 2, 3]]
        self.pending: list[Pending] = []
        self.count = 0

    @rule(
        data=st.data(),
        literal=st.lists(st.integers(60, 62), max_size=12),
        max_tokens=st.integers(0, 12),
        n=st.integers(1, 3),
        select=st.booleans(),
    )
    def submit(self, data: Any, literal: list[int], max_tokens: int, n: int, select: bool) -> None:
        """Extend a branch: a literal, a generation, sometimes a selection, and another generation."""
        prefix = data.draw(st.sampled_from(self.branches))
        gen = Gen(sampling=Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True))
        segments: list[Any] = [Tokens([*prefix, *literal]), gen]
        if select:
            segments += [Select(choices=("<", "<=>", "<=<", "=")), Tokens([60]), gen]
        self.count += 1
        pending = Pending(Request(rid=str(self.count), segments=segments, n=n))
        self.pending.append(pending)
        self.engine.submit(pending.request, pending)

    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        if self.pending:
            pending = data.draw(st.sampled_from(self.pending))
            pending.aborted = True
            self.engine.abort(pending.request.rid)

    @rule()
    def flush(self) -> None:
        self.engine.flush_cache()

    @rule()
    def wait(self) -> None:
        """All requests end, each with exactly what the model says."""
        for pending in self.pending:
            assert pending.done.wait(10), pending.request
            if isinstance(pending.events[-1], Failed):
                assert pending.events[-1].code == "context_length_exceeded"
                continue
            for event in pending.events:
                if isinstance(event, SampleDone) and not pending.aborted:
                    self.check_sample(pending, event)
                    self.branches.append(event.token_ids[:60])
        self.pending.clear()
        stats = self.engine.stats()
        assert stats.running == stats.waiting == 0

    def check_sample(self, pending: Pending, done: SampleDone) -> None:
        expected: list[int] = []
        results = {
            event.segment: event.result
            for event in pending.events
            if isinstance(event, SegmentDone) and event.sample == done.sample
        }
        for index, segment in enumerate(pending.request.segments):
            if isinstance(segment, Tokens):
                expected += segment.ids
            elif isinstance(segment, Gen):
                result = results[index]
                assert isinstance(result, GenResult)
                start = len(expected)
                limit = min(segment.sampling.max_tokens or 0, 90 - start)
                for _ in range(max(0, limit)):
                    expected.append(next_token(expected))
                assert result.token_ids == expected[start:]
            else:
                result = results[index]
                assert isinstance(result, SelectResult)
                expected += result.token_ids
        assert done.token_ids == expected

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        if hasattr(self, "engine"):
            self.engine.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            try:
                self.wait()
                self.engine.check_integrity()
            finally:
                StepCost.growth = self.growth  # type: ignore[method-assign]
                self.engine.close()


EngineMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestEngine = EngineMachine.TestCase
