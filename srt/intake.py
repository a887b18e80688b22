"""From `submit` to the loop: requests that are being prepared, and those that wait for a grammar."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from stolon.errors import EngineClosed, InternalError, InvalidRequest, Overloaded, StolonError
from stolon.srt.admission import Admission
from stolon.srt.client import EngineStats
from stolon.srt.job import Job
from stolon.srt.loop import EngineLoop
from stolon.srt.protocol import Event, Failed, Gen, Request, Tokens

MAX_QUEUE = 16_384
"""Requests that may wait; more are refused with Overloaded."""


class Intake:
    """Takes requests in, prepares them and hands them to the loop. Thread-safe.

    Tokenising and compiling grammars happen in its own threads, so that the loop only ever computes.
    """

    def __init__(self, admission: Admission, loop: EngineLoop) -> None:
        self._admission = admission
        self._loop = loop
        self._workers = ThreadPoolExecutor(2, thread_name_prefix="stolon-admission")
        self._lock = threading.Lock()
        self._pending: dict[str, bool] = {}  # being prepared; whether it was aborted meanwhile
        self._closed = False
        self._submitted = self._refused = 0
        # Also when the engine is dropped or the interpreter ends: a thread in the middle of a step must not
        # outlive the libraries it computes with.
        self._shutdown = weakref.finalize(self, _stop, admission, self._workers, loop)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        """Queue a request; see EngineClient."""
        self._loop.process.check()
        submitted = time.perf_counter()
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed")
            self._submitted += 1
            refusal: StolonError | None = None
            if request.rid in self._pending:
                refusal = InvalidRequest(f"request id {request.rid!r} is in use", param="rid")
            elif len(self._pending) + self._loop.waiting >= MAX_QUEUE:
                refusal = Overloaded(f"{MAX_QUEUE} requests are waiting", hint="retry later")
            if refusal is not None:
                self._refused += 1
                on_event(Failed.of(request.rid, refusal))
                return
            self._pending[request.rid] = False
            at_once = _is_quick(request)
            if not at_once:
                self._workers.submit(self._prepare, request, on_event, submitted)
        if at_once:
            self._prepare(request, on_event, submitted)

    def abort(self, rid: str) -> None:
        """Cancel a request; unknown ids are ignored."""
        self._loop.process.check()
        with self._lock:
            if self._closed:
                return
            if rid in self._pending:
                self._pending[rid] = True  # still being prepared: cancelled before it is queued
                return
        try:
            self._loop.post(partial(self._loop.abort, rid))
        except EngineClosed:
            return

    def stats(self) -> EngineStats:
        """The loop's counters and gauges, with the requests that never came to it."""
        self._loop.process.check()
        stats = self._loop.snapshot()
        with self._lock:  # after the loop's: no request counts as over before it counts at all
            stats.requests = self._submitted
            stats.failed += self._refused
        return stats

    def close(self) -> None:
        """Stop the loop. Requests that are not finished fail with EngineClosed. Closing twice is fine.

        In a fork nothing happens: the threads, and what they work on, are the other process's.
        """
        if not self._loop.process.here():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._shutdown()

    def _prepare(
        self, request: Request, on_event: Callable[[Event], None], submitted: float
    ) -> None:
        try:
            job = self._admission.prepare(request, on_event, submitted)
        except StolonError as error:
            self._turn_away(request, on_event, error)
            return
        except Exception as error:
            failure = InternalError(f"preparing the request failed ({type(error).__name__})")
            self._turn_away(request, on_event, failure)
            return
        with self._lock:
            # In one go, so that an abort always finds the request in one of the two places.
            aborted = self._pending.pop(request.rid, False)
            try:
                self._loop.post(partial(self._loop.add, job))
            except EngineClosed as error:
                self._refused += 1
                on_event(Failed.of(request.rid, error))
                return
        if aborted:
            self.abort(request.rid)
        self._compile(job)

    def _compile(self, job: Job) -> None:
        """Compile what a queued job waits for, while the loop computes its prompt."""
        try:
            for missing in job.uncompiled:
                grammar = self._admission.compile(missing)
                self._loop.post(partial(self._loop.use_grammar, job, missing.segment, grammar))
        except EngineClosed:
            return  # which has ended the job
        except StolonError as error:
            self._refuse(job, error)
        except Exception as error:
            self._refuse(job, InternalError(f"compiling a grammar failed ({type(error).__name__})"))

    def _refuse(self, job: Job, error: StolonError) -> None:
        with suppress(EngineClosed):
            self._loop.post(partial(self._loop.refuse, job, error))

    def _turn_away(
        self, request: Request, on_event: Callable[[Event], None], error: StolonError
    ) -> None:
        """End a request that never was a job."""
        with self._lock:
            self._pending.pop(request.rid, None)
            self._refused += 1
        on_event(Failed.of(request.rid, error))


def _is_quick(request: Request) -> bool:
    """Whether preparing a request takes microseconds: nothing to tokenise, heal or compile."""
    return all(
        isinstance(segment, Tokens)
        or (
            isinstance(segment, Gen) and segment.grammar is None and not segment.sampling.stop_regex
        )
        for segment in request.segments
    )


def _stop(admission: Admission, workers: ThreadPoolExecutor, loop: EngineLoop) -> None:
    if not loop.process.here():  # a fork ends, or drops its copy of the engine
        return
    admission.close()
    workers.shutdown(wait=True)
    loop.close()
