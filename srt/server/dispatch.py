"""Admission, and the events of the engine requests that one HTTP request stands for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from stolon.errors import InvalidRequest, Overloaded, StolonError
from stolon.srt.client import EngineClient
from stolon.srt.protocol import (
    Delta,
    Event,
    Failed,
    GenResult,
    Request,
    SampleDone,
    SegmentDone,
)
from stolon.srt.server.errors import HTTPFailure
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.metrics import Metrics


class Ticket:
    """A place in the queue, from the HTTP request's arrival until the engine's first event for it.

    A request that is not streamed may have none before its end.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        """`dispatcher` has reserved one place for it."""
        self._dispatcher = dispatcher
        self.arrival = time.monotonic()
        self._places = 1

    def widen(self, places: int) -> None:
        """Hold `places` places instead of one: a batch counts as its engine requests."""
        if places > self._dispatcher.limits.max_queued:
            raise InvalidRequest(f"{places} prompts are more than this server ever queues")
        self._dispatcher.reserve(places - self._places)
        self._places = places

    def release(self) -> None:
        """Give the places back. Idempotent."""
        self._dispatcher.queued -= self._places
        self._places = 0


class Dispatcher:
    """Sends requests to the engine and routes the events back to the event loop.

    `queued` counts engine requests that have been accepted and have no output yet; it never exceeds
    `limits.max_queued`. While `draining`, nothing new is accepted.
    """

    def __init__(self, client: EngineClient, limits: ServerLimits, metrics: Metrics) -> None:
        self.client = client
        self.limits = limits
        self.metrics = metrics
        self.queued = 0
        self.draining = False
        self._runs: set[Run] = set()

    @property
    def in_flight(self) -> int:
        return len(self._runs)

    def admit(self) -> Ticket:
        """Take a place.

        Raises Overloaded, or HTTPFailure while draining, before any work is done.
        """
        self.reserve(1)
        return Ticket(self)

    def reserve(self, places: int) -> None:
        """Take `places` more places in the queue, or raise."""
        if self.draining:
            raise HTTPFailure(
                503,
                "draining",
                "The server is shutting down.",
                # Elsewhere, or at what is started in its place; not on this connection.
                headers={"x-should-retry": "true", "connection": "close"},
            )
        if self.queued + places > self.limits.max_queued:
            self.metrics.rejections.inc()
            raise Overloaded("the queue is full")
        self.queued += places

    def start(self, requests: Sequence[Request], ticket: Ticket) -> Run:
        """Submit all requests.

        Raises Overloaded or EngineClosed; then none of them is left running.
        """
        ticket.widen(len(requests))
        run = Run(self, requests, ticket)
        self._runs.add(run)
        try:
            run.submit()
        except BaseException:
            run.close()
            raise
        return run

    def forget(self, run: Run) -> None:
        self._runs.discard(run)

    def fail_all(self, error: StolonError) -> None:
        """End every run with `error`; the engine requests are cancelled."""
        for run in list(self._runs):
            run.fail(error)


class Run:
    """Engine requests in flight for one HTTP request; their events arrive merged, with the
    request's index.

    Must be closed: closing cancels what has not ended.
    """

    def __init__(self, dispatcher: Dispatcher, requests: Sequence[Request], ticket: Ticket) -> None:
        self._dispatcher = dispatcher
        self._requests = requests
        self._ticket = ticket
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._open = {index: request.n for index, request in enumerate(requests)}
        self._unsubmitted = len(requests)
        self._last_token: dict[tuple[int, int], float] = {}
        self._first_seen = False
        self._failure: StolonError | None = None

    @property
    def finished(self) -> bool:
        """Whether every sample has ended well."""
        return not self._open and self._failure is None

    def submit(self) -> None:
        """Hand the requests to the engine."""
        for index, request in enumerate(self._requests):
            self._dispatcher.client.submit(request, partial(self._post, index))
            self._unsubmitted -= 1

    async def events(self, wait: float | None = None) -> list[tuple[int, Event]]:
        """Everything that has arrived, at least one event; empty if nothing did within `wait`
        seconds.

        Once what came before it is returned, the StolonError of a request that failed is raised.
        """
        if self._failure is not None:
            raise self._failure
        try:
            async with asyncio.timeout(wait):
                batch = [await self._queue.get()]
        except TimeoutError:
            return []
        while not self._queue.empty():
            batch.append(self._queue.get_nowait())
        good: list[tuple[int, Event]] = []
        for index, event in batch:
            if isinstance(event, Failed):
                self._open.pop(index, None)
                self._failure = event.error()
                break
            self._account(index, event)
            good.append((index, event))
        if self._failure is not None and not good:
            raise self._failure
        return good

    def fail(self, error: StolonError) -> None:
        """Make `events` raise `error` next."""
        self._queue.put_nowait((-1, Failed.of("", error)))

    def close(self) -> None:
        """Cancel what has not ended, give the places back. Idempotent."""
        submitted = len(self._requests) - self._unsubmitted
        for index in list(self._open):
            if index < submitted:
                self._dispatcher.client.abort(self._requests[index].rid)
        self._open.clear()
        self._ticket.release()
        self._dispatcher.forget(self)

    def _post(self, index: int, event: Event) -> None:
        """Called from the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._queue.put_nowait, (index, event))
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _account(self, index: int, event: Event) -> None:
        metrics = self._dispatcher.metrics
        now = time.monotonic()
        if not self._first_seen:
            self._first_seen = True
            self._ticket.release()
        match event:
            case Delta():
                key = (index, event.sample)
                if key in self._last_token:
                    count = max(1, len(event.token_ids))
                    metrics.inter_token_latency.observe((now - self._last_token[key]) / count)
                else:
                    metrics.time_to_first_token.observe(now - self._ticket.arrival)
                self._last_token[key] = now
            case SegmentDone(result=GenResult() as result):
                usage = result.usage
                metrics.queue_time.observe(usage.queue_time)
                metrics.prefill_time.observe(usage.prefill_time)
                metrics.decode_time.observe(usage.decode_time)
                metrics.success.labels(result.finish.kind).inc()
                if (index, event.sample) not in self._last_token:
                    metrics.time_to_first_token.observe(usage.queue_time + usage.prefill_time)
                    if usage.completion_tokens > 1:
                        metrics.inter_token_latency.observe(
                            usage.decode_time / (usage.completion_tokens - 1)
                        )
            case SampleDone():
                self._open[index] -= 1
                if not self._open[index]:
                    del self._open[index]
                if not self._open:
                    metrics.e2e_latency.observe(now - self._ticket.arrival)
