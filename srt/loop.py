"""The engine's one loop: admit, build, forward, sample, advance. It runs in one thread and owns all state."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from copy import copy

from stolon.constrained import Grammar
from stolon.errors import EngineClosed, InternalError, InvalidRequest, StolonError
from stolon.srt.batching import Batcher
from stolon.srt.client import EngineStats
from stolon.srt.compute_thread import ComputeThread
from stolon.srt.drafting import Drafter
from stolon.srt.heap import return_freed_memory
from stolon.srt.job import Job
from stolon.srt.kv_space import KVSpace
from stolon.srt.logits_reader import LogitsReader
from stolon.srt.model_runner import Runner
from stolon.srt.one_process import OneProcess
from stolon.srt.scheduler import Scheduler
from stolon.srt.walker import Walker

log = logging.getLogger("stolon.engine")

TIDY_SECONDS = 5.0
"""At least so long between two times that an idle engine gives memory back; it takes a few milliseconds."""

ASK_SECONDS = 0.001
"""Between two looks at a grammar that is compiled in the middle of a text, while there is nothing to do."""


class EngineLoop:
    """Runs steps while there is work, and sleeps otherwise.

    Everything but `post` and `close` belongs to the loop's thread: other threads hand it actions, which
    run between two steps.

    Attributes:
        process: that the loop's thread is in.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        batcher: Batcher,
        walker: Walker,
        reader: LogitsReader,
        drafter: Drafter,
        space: KVSpace,
        stats: EngineStats,
        thread: ComputeThread,
    ) -> None:
        self.stats = stats
        self.process = OneProcess()
        self._runner = runner
        self._scheduler = scheduler
        self._batcher = batcher
        self._walker = walker
        self._reader = reader
        self._drafter = drafter
        self._space = space
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._held_back = False
        self._ask_again: float | None = None
        self._tidied = time.perf_counter()
        self._tidied_steps = 0
        self._jobs: dict[str, Job] = {}
        self._thread = thread
        thread.start(self._run)

    # For other threads

    def post(self, action: Callable[[], None]) -> None:
        """Run `action` in the loop's thread before the next step.

        Raises EngineClosed after `close`, and in a fork of the loop's process.
        """
        self.process.check()
        with self._wake:
            if self._closing:
                raise EngineClosed("the engine is closed")
            self._inbox.append(action)
            self._wake.notify()

    def call(self, action: Callable[[], None]) -> None:
        """`post`, then wait until it ran. What it raises is raised here."""
        done = threading.Event()
        failure: list[BaseException] = []

        def run() -> None:
            try:
                action()
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self.post(run)
        done.wait()
        if failure:
            raise failure[0]

    def close(self) -> None:
        """Stop after the current step; what is still queued or running fails with EngineClosed."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Sequences in the queue, about."""
        return len(self._scheduler.waiting)

    # In the loop's thread

    def add(self, job: Job) -> None:
        """Queue an admitted job."""
        rid = job.request.rid
        if rid in self._jobs:
            self._forget_finished()
        if rid in self._jobs:
            self._walker.fail(job, InvalidRequest(f"request id {rid!r} is in use", param="rid"))
            return
        self._jobs[rid] = job
        self._scheduler.add(job)
        for seq in self._scheduler.of_job(job):
            self._walker.start(seq)

    def abort(self, rid: str) -> None:
        """End a job's samples with what they have."""
        job = self._jobs.pop(rid, None)
        if job is not None:
            for seq in self._scheduler.of_job(job):
                self._walker.abort(seq)

    def use_grammar(self, job: Job, segment: int, grammar: Grammar) -> None:
        """What a job waited for is compiled."""
        job.use_grammar(segment, grammar)
        for seq in self._scheduler.of_job(job):
            self._walker.resume(seq)

    def refuse(self, job: Job, error: StolonError) -> None:
        """A grammar that a job waits for is refused. Nothing happens if the job is over by now."""
        if self._jobs.get(job.request.rid) is job and self._scheduler.of_job(job):
            self._walker.fail(job, error)

    def flush_cache(self) -> None:
        self._space.flush()

    def check_integrity(self) -> None:
        """Raise InternalError unless every KV slot is accounted for."""
        self._space.check_integrity(self._scheduler.running)

    def snapshot(self) -> EngineStats:
        """Counters and gauges of now, as a copy; all but `requests`, which the intake counts."""
        stats = copy(self.stats)
        stats.running = len(self._scheduler.running)
        stats.waiting = len(self._scheduler.waiting)
        stats.kv_slots = self._space.pool.num_slots
        stats.kv_used = stats.kv_slots - self._space.pool.num_free
        stats.kv_cached = self._space.tree.size
        stats.kv_evictable = self._space.tree.evictable
        stats.retractions = self._scheduler.retractions
        stats.evicted_tokens = self._space.evicted
        return stats

    def _run(self) -> None:
        while True:
            self._tidy_if_idle()
            with self._wake:
                while not (self._inbox or self._closing or self._busy()):
                    self._wake.wait(self._ask_again)
                    self._held_back, self._ask_again = False, None
                actions = list(self._inbox)
                self._inbox.clear()
                closing = self._closing
                if actions:
                    self._held_back = False
            while actions:
                actions.pop(0)()
            if closing:
                self._fail_all(EngineClosed("the engine was closed"))
                return
            if self._busy():
                self._step_guarded()

    def _tidy_if_idle(self) -> None:
        """Before the loop sleeps, now and then: give back what the steps since the last time freed."""
        now = time.perf_counter()
        if now - self._tidied > TIDY_SECONDS and self.stats.steps > self._tidied_steps:
            if self._inbox or self._busy():
                return
            return_freed_memory()
            self._tidied, self._tidied_steps = now, self.stats.steps

    def _busy(self) -> bool:
        if self._held_back:
            return False
        return bool(self._scheduler.running or self._scheduler.waiting)

    def _step_guarded(self) -> None:
        """One step behind the fault barrier: whatever happens, the loop goes on (promise P3)."""
        try:
            self._step()
        except Exception as error:
            log.exception("a step failed")
            kind = "out of memory" if isinstance(error, MemoryError) else type(error).__name__
            self._fail_all(InternalError(f"a step of the engine failed ({kind})"))

    def _step(self) -> None:
        begun = time.perf_counter()
        if not self._scheduler.running:
            self._scheduler.wake()
        if self._scheduler.waiting:
            self._scheduler.admit()
        plan = self._batcher.plan()
        for seq in plan.stuck:
            self._walker.fail(
                seq.job,
                InvalidRequest(
                    f"a sequence of {len(seq.tokens)} tokens needs more KV slots than the pool has",
                    hint="start the engine with more kv_tokens",
                ),
            )
        if plan.batch is None:
            if not plan.stuck:
                # All there is to do needs grammars that are being compiled. Those that generations
                # begin with come by `post`.
                if not plan.held_back:
                    raise InternalError("a step had nothing to compute")
                self._held_back = True
                under_way = any(seq.generation is not None for seq in plan.held_back)
                self._ask_again = ASK_SECONDS if under_way else None
            return
        planned = time.perf_counter()
        logits = self._runner.forward(plan.batch)
        forward_time = time.perf_counter() - planned
        self._drafter.observe(len(plan.batch.input_ids), plan.whole, forward_time)
        sample_time = self._reader.read(plan, logits)
        if len(self._jobs) > len(self._scheduler.running) + len(self._scheduler.waiting):
            self._forget_finished()
        # Together, so that whoever reads them while a step runs sees whole steps.
        self.stats.steps += 1
        self.stats.forward_time += forward_time
        self.stats.sample_time += sample_time
        self.stats.step_time += time.perf_counter() - begun

    def _forget_finished(self) -> None:
        alive = {
            seq.job.request.rid for seq in (*self._scheduler.running, *self._scheduler.waiting)
        }
        self._jobs = {rid: job for rid, job in self._jobs.items() if rid in alive}

    def _fail_all(self, error: StolonError) -> None:
        """End every request, and start anew with an empty cache."""
        self._forget_finished()
        self._scheduler.clear()
        self._space.reset()
        for job in self._jobs.values():
            self._walker.fail(job, error)
        self._jobs.clear()
