"""From a body to its answer: one place for streams, whole answers, disconnects and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stolon.errors import InvalidRequest
from stolon.srt.protocol import Event, Request
from stolon.srt.server.bodies import parse_body, read_body
from stolon.srt.server.dispatch import Dispatcher, Run, Ticket
from stolon.srt.server.errors import Failure, describe, renamed
from stolon.srt.server.outcomes import Gathering, Outcome

T = TypeVar("T")

SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_PREPARE_THREADS = 4  # templates and tokenising are CPU work: a few threads, however many requests


def sse(data: bytes) -> bytes:
    """One server-sent event. JSON from msgspec holds no line break."""
    return b"data: " + data + b"\n\n"


class Job(Protocol):
    """What a route makes of its body: engine requests, and how their events read in its dialect.

    The first two attributes are constant. `chunks` and `closing` are called in order for a stream,
    `whole` once otherwise, `names` for an error.
    """

    requests: list[Request]
    stream: bool

    def whole(self, outcomes: list[Outcome]) -> object:
        """The JSON-able answer."""
        ...

    def chunks(self, index: int, event: Event) -> Iterable[object]:
        """The JSON-able stream chunks for an event of request `index`."""
        ...

    def closing(self) -> Iterable[object]:
        """Chunks after the last event."""
        ...

    def names(self) -> Mapping[str, str]:
        """The body's names of what the engine names otherwise; see `renamed`."""
        ...


class Preparer:
    """Runs the CPU work that precedes a submit, off the event loop."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(_PREPARE_THREADS)

    async def run(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


class Answer(Response):
    """Reads the body, makes the job, runs it and sends the result.

    The client's disconnect cancels the work at any point, and so aborts its engine requests, for
    streams and whole answers alike.
    """

    def __init__(
        self,
        request: HTTPRequest,
        kind: type[T],
        prepare: Callable[[T], Job],
        dispatcher: Dispatcher,
        preparer: Preparer,
    ) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._preparer = preparer
        self._started = False
        self._job: Job | None = None

        async def make_job() -> Job:
            limits = dispatcher.limits
            body = await parse_body(await read_body(request, limits), kind, limits)
            return await preparer.run(lambda: prepare(body))

        self._make_job = make_job

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            ticket = self._dispatcher.admit()
            try:
                job = self._job = await self._make_job()
                await until_disconnect(self._answer(job, ticket, send), receive)
            finally:
                ticket.release()
        except Exception as error:
            if self._started:
                raise
            await self.failure(error).response()(scope, receive, send)

    def failure(self, error: Exception) -> Failure:
        """How an error is told to this client."""
        if self._job is not None and isinstance(error, InvalidRequest):
            error = renamed(error, self._job.names())
        return describe(error, retry_after=self._dispatcher.limits.retry_after)

    async def _answer(self, job: Job, ticket: Ticket, send: Send) -> None:
        run = self._dispatcher.start(job.requests, ticket)
        try:
            if job.stream:
                await self._stream(job, run, send)
            else:
                await self._whole(job, run, send)
        finally:
            run.close()

    async def _whole(self, job: Job, run: Run, send: Send) -> None:
        gathering = Gathering(job.requests)
        while not run.finished:
            gathering.add(await run.events())
        body = msgspec.json.encode(job.whole(gathering.outcomes()))
        self._started = True
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, job: Job, run: Run, send: Send) -> None:
        """Send events as they come.

        The status waits for the engine's first word, so that a refused request is not a 200. A
        request that still waits after the keep-alive time was accepted, and gets its headers.
        """
        pieces = self._pieces(job, run)
        first = await anext(pieces, b"")
        self._started = True
        await send({"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        last = DONE
        try:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Exception as error:
            last = sse(self.failure(error).json()) + DONE
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _pieces(self, job: Job, run: Run) -> AsyncIterator[bytes]:
        silence = self._dispatcher.limits.keep_alive
        while not run.finished:
            events = await run.events(wait=silence)
            if not events:
                yield KEEP_ALIVE
                continue
            chunks = (chunk for index, event in events for chunk in job.chunks(index, event))
            if piece := _encode(chunks):
                yield piece
        if piece := _encode(job.closing()):
            yield piece


def _encode(chunks: Iterable[object]) -> bytes:
    return b"".join(sse(msgspec.json.encode(chunk)) for chunk in chunks)


async def until_disconnect(work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Await the coroutine `work`; cancel it, and wait for its end, when the client goes away."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.wait({task, gone})
    if not task.cancelled():
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
