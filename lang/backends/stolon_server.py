"""A Stolon server as the engine of programs: every block is one request, answered by a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from stolon.errors import (
    BackendError,
    BackendUnavailable,
    StolonError,
)
from stolon.lang.backends import sse
from stolon.lang.backends.http import HTTPClient, HTTPOptions, encoded
from stolon.lang.backends.http_answer import Answer
from stolon.lang.backends.http_errors import printable
from stolon.lang.backends.remote_tokenizer import RemoteTokenizer
from stolon.lang.backends.served import ServerInfo, checked, compiled, explain
from stolon.lang.backends.under_way import UnderWay
from stolon.lang.backends.walk_check import WalkCheck
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop
from stolon.srt.client import EngineStats, ModelInfo, Served
from stolon.srt.protocol import Event, Failed, Gen, Request
from stolon.srt.tokenizer import ChatTemplate

T = TypeVar("T")

MAX_INFO_BYTES = 4 << 20

_LAST_WORD = 1.0  # seconds for the end of a stream after the last event

_events = msgspec.json.Decoder(Event, strict=False)  # not strict: "-inf" is a number here


class RemoteEngine:
    """Implements `EngineClient` over a Stolon server.

    What a program does here and on the embedded engine is the same, token for token. Errors of the
    connection are `BackendUnavailable`; they are raised where the program reads.

    Attributes:
        url: the server's address.
        http: for its other routes.
    """

    info: ModelInfo
    tokenizer: RemoteTokenizer
    chat_template: ChatTemplate | None

    def __init__(self, url: str, options: HTTPOptions | None = None) -> None:
        """Asks the server what it serves.

        Raises BackendUnavailable or AccessDenied, and BackendError for a server that is none of ours, or
        of a version that does not fit.
        """
        refuse_on_loop("connecting to a server")
        self.http = HTTPClient(url, options, explain=explain)
        self.url = self.http.server
        self._requests = UnderWay(self.url)
        try:
            served = checked(
                _wait(self.http.json("GET", "/blocks/info", kind=Served, limit=MAX_INFO_BYTES))
            )
            self.info = served.model
            self.tokenizer = RemoteTokenizer(served.tokenizer, self.http)
            self.chat_template = compiled(served.chat_template)
        except BaseException:
            self.close()
            raise

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        check = WalkCheck(request, self.info, server=self.url)

        def on_end(error: StolonError | None) -> None:
            if error is not None and not check.finished:
                on_event(Failed.of(request.rid, error))

        self._requests.begin(request.rid, partial(self._serve, request, on_event, check), on_end)

    def abort(self, rid: str) -> None:
        """Cancel: the connection is closed, at which the server stops. The request ends with `Aborted`."""
        self._requests.abort(rid)

    def stats(self) -> EngineStats:
        """The engine's counters, and `info` as it is now. Raises BackendError if the server can't tell."""
        refuse_on_loop("asking a server for its stats")
        answer = _wait(self.http.json("GET", "/server_info", kind=ServerInfo, limit=MAX_INFO_BYTES))
        self.info = answer.model
        if answer.engine is None:
            raise BackendUnavailable(f"the engine of {self.url} is too busy to tell its stats")
        stats: EngineStats = answer.engine
        return stats

    def flush_cache(self) -> None:
        refuse_on_loop("asking a server to drop its cache")
        _wait(self.http.json("POST", "/flush_cache", limit=MAX_INFO_BYTES))

    def close(self) -> None:
        """End the requests under way and close the connections. The server goes on. Idempotent."""
        self._requests.close(self.http.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.info.name!r} at {self.url}>"

    # -- on the loop -----------------------------------------------------------------------------

    async def _serve(
        self, request: Request, on_event: Callable[[Event], None], check: WalkCheck
    ) -> None:
        """Raises what ends the request early."""
        if _wants_spellings(request):
            await self.tokenizer.load()
        sent = request

        def body(attempt: int) -> bytes:
            # Each attempt has an id of its own: the one before may not be over at the server yet.
            nonlocal sent
            if attempt:
                sent = msgspec.structs.replace(request, rid=f"{request.rid}.{attempt}")
            return encoded(sent)

        async with (
            self.http.stream("POST", "/blocks", body) as answer,
            contextlib.aclosing(self._received(answer, check)) as events,
        ):
            async for event in events:
                check.take(event, rid=sent.rid)
                if sent is not request:
                    event = msgspec.structs.replace(event, rid=request.rid)
                on_event(event)
                if check.finished:
                    break
            else:
                raise BackendUnavailable(f"{self.url} ended its answer too early")
            # Read to the end, and the connection serves again.
            async with asyncio.timeout(_LAST_WORD):
                await anext(events, None)

    async def _received(self, answer: Answer, check: WalkCheck) -> AsyncGenerator[Event, None]:
        async for data in sse.data(check.counted(answer.chunks()), server=self.url):
            if data == b"[DONE]":
                continue
            if data.startswith(b'{"error"'):
                raise explain(0, data, server=self.url)
            try:
                event = _events.decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise BackendError(
                    f"{self.url} sent something that is no event: {printable(str(error))}"
                ) from error
            yield event


def _wants_spellings(request: Request) -> bool:
    """Whether the program may ask how tokens of the answer are spelled."""
    return request.prompt_logprobs is not None or any(
        isinstance(segment, Gen) and segment.logprobs is not None for segment in request.segments
    )


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Run on the loop and wait. The caller has made sure that this is another thread."""
    future = runtime_loop().submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
