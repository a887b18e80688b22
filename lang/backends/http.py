"""HTTP for backends: kept connections, bounded answers, retries, and errors in the one tree.

How a backend uses it, always on the runtime loop (`stolon.lang.runtime_loop`)::

    http = HTTPClient("https://host/v1", HTTPOptions(api_key="…", read_timeout=600))
    body = await http.json("POST", "/completions", {...})     # decoded JSON of a whole answer
    async with http.stream("POST", "/completions", {...}) as answer:
        async for data in sse.data(answer.chunks()):          # the module next to this one
            ...
    await http.aclose()

* `json` and `stream` retry by themselves, with backoff and jitter, only while nothing of the answer has
  been handed out: connections refused or lost, 429, 502, 503, 504 (``Retry-After``, ``retry-after-ms`` and
  ``x-should-retry`` are heard). An answer that is late is not asked for again. Cancelling a task ends a wait.
  A server that never accepted a connection of this client is given `FIRST_CONTACT` seconds.
* Everything else arrives as a StolonError: `BackendUnavailable` (can't be reached, lost, late),
  `Overloaded` (429), `AccessDenied` (401, 403), `InvalidRequest` (400, 413, 422 …, the server's own words),
  `BackendError` (the rest, and answers that are too large or no JSON). `http_errors.refusal` makes them;
  `error.retryable` says whether to try again.
* At most `max_connections` requests are under way; others wait their turn without a limit of time.
* Leaving the `stream` block, or cancelling its task, closes the connection at once: servers abort then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from time import monotonic
from typing import Any

import httpx
import msgspec

from stolon.errors import BackendError, EngineClosed, InvalidRequest, StolonError
from stolon.lang.backends.connections import Connections, completed
from stolon.lang.backends.http_answer import (
    MAX_ANSWER_BYTES,
    Answer,
    decoded,
    is_plain,
    retry_advice,
)
from stolon.lang.backends.http_errors import refusal, unreachable
from stolon.lang.backends.http_options import HTTPOptions as HTTPOptions
from stolon.lang.backends.http_options import Retries as Retries
from stolon.lang.backends.http_options import checked_address, is_loopback, trust

MAX_ERROR_BYTES = 64 << 10

FIRST_CONTACT = 1.0
"""Seconds from the first attempt on in which a server that was never reached is tried again: it may be just
starting, but a wrong address should soon be told."""


class HTTPClient:
    """A client for one server, with connections that are kept.

    Attributes:
        server: its address for messages.
    """

    def __init__(
        self,
        base_url: str,
        options: HTTPOptions | None = None,
        *,
        explain: Callable[..., StolonError] = refusal,
    ) -> None:
        """`explain` (status, body, server=) makes the errors of answers that are none.

        Raises InvalidRequest for an address that is none. Nothing is sent.
        """
        self._explain = explain
        self._loopback = is_loopback(checked_address(base_url))
        self.server = base_url.rstrip("/")
        self.options = options or HTTPOptions()
        self._connections: Connections | None = None
        self._closed = False
        self._reached = False
        self._first_attempt: float | None = None

    async def json(
        self,
        method: str,
        path: str,
        body: object | None = None,
        *,
        kind: Any = Any,
        limit: int = MAX_ANSWER_BYTES,
        retry: bool = True,
    ) -> Any:
        """A whole answer, decoded as `kind` (a type for msgspec, as data or a struct)."""
        async with self.stream(method, path, body, retry=retry) as answer:
            data = await answer.read(limit)
        return decoded(data, kind, server=self.server)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, body: object | None = None, *, retry: bool = True
    ) -> AsyncIterator[Answer]:
        """Send a request; inside the block its answer can be read.

        `body` is sent as JSON; bytes are sent as they are, as JSON. A callable is called for each attempt
        (with its number, from 0) and gives one of these.
        """
        async with self._open().one() as client:
            response = await self._send(client, method, path, body, retry=retry)
            try:
                yield Answer(response, self.server)
            finally:
                # To its end, also if the task is cancelled meanwhile: a connection that is closed by half
                # is never free again, and the next request would wait for it.
                await completed(response.aclose())

    async def aclose(self) -> None:
        """Close for good: requests under way and later ones raise EngineClosed. Idempotent."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections.loop is asyncio.get_running_loop():
            await connections.aclose()

    def _open(self) -> Connections:
        if self._closed:
            raise EngineClosed(f"the connection to {self.server} was closed")
        # Connections belong to a loop. A process that was forked has another one, and starts anew.
        kept = self._connections
        if kept is None or kept.loop is not asyncio.get_running_loop():
            kept = self._connections = Connections(self._clients(), self.options.max_connections)
        return kept

    def _clients(self) -> Callable[[httpx.Limits], httpx.AsyncClient]:
        options = self.options
        headers = {"accept-encoding": "identity", "user-agent": "stolon"}
        if options.api_key is not None:
            headers["authorization"] = f"Bearer {options.api_key}"
        headers |= {name.lower(): value for name, value in options.headers.items()}
        # Made once: reading the certificates takes longer than a request.
        trusted = trust(options.verify)
        context = httpx.create_ssl_context(verify=trusted)
        timeout = httpx.Timeout(options.read_timeout, connect=options.connect_timeout, pool=None)

        def new_client(limits: httpx.Limits) -> httpx.AsyncClient:
            return httpx.AsyncClient(
                headers=headers,
                verify=context,
                timeout=timeout,
                limits=limits,
                follow_redirects=False,
                # Proxies of the environment are for other machines; on this one they are in the way.
                trust_env=not self._loopback,
                transport=options.transport() if options.transport else None,
            )

        return new_client

    async def _send(
        self, client: httpx.AsyncClient, method: str, path: str, body: object, *, retry: bool
    ) -> httpx.Response:
        """The first answer that is not to be retried. Raises what the last attempt ended with."""
        attempt = 0
        if self._first_attempt is None:
            self._first_attempt = monotonic()
        contact_ends = self._first_attempt + FIRST_CONTACT
        while True:
            asked: float | None = None
            failure: StolonError
            try:
                response = await client.send(
                    self._request(client, method, path, body, attempt), stream=True
                )
            except httpx.HTTPError as error:
                failure = unreachable(self.server, error, ever=self._reached)
                again = not isinstance(error, httpx.TimeoutException) or isinstance(
                    error, httpx.ConnectTimeout
                )
                again = again and (self._reached or monotonic() < contact_ends)
            else:
                self._reached = True
                if 200 <= response.status_code < 300 and is_plain(response):
                    return response
                failure = await self._refusal(response)
                again, asked = retry_advice(response)
            wait = self.options.retries.wait(attempt, asked) if again and retry else None
            if wait is None:
                raise failure
            await asyncio.sleep(wait)
            attempt += 1

    def _request(
        self, client: httpx.AsyncClient, method: str, path: str, body: object, attempt: int
    ) -> httpx.Request:
        if callable(body):
            body = body(attempt)
        headers = {}
        content: bytes | None = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = body if isinstance(body, bytes) else encoded(body)
        extensions = {} if self._reached else {"trace": self._trace}
        try:
            return client.build_request(
                method, self.server + path, content=content, headers=headers, extensions=extensions
            )
        except (UnicodeEncodeError, httpx.InvalidURL) as error:
            raise InvalidRequest(
                f"the request to {self.server} can't be written: {error}"
            ) from None

    async def _trace(self, event: str, _: Mapping[str, Any]) -> None:
        """A connection has come about as soon as a request is written to it."""
        if event.endswith("send_request_headers.started"):
            self._reached = True

    async def _refusal(self, response: httpx.Response) -> StolonError:
        """The error of an answer that is none; its body is read as far as it matters."""
        if not is_plain(response):
            await response.aclose()
            return BackendError(f"{self.server} compresses answers although asked not to")
        body = bytearray()
        try:
            async for chunk in Answer(response, self.server).chunks():
                body += chunk
                if len(body) > MAX_ERROR_BYTES:
                    break
        except BackendError:
            pass  # the status says enough
        finally:
            await completed(response.aclose())
        return self._explain(response.status_code, bytes(body), server=self.server)


def encoded(body: object) -> bytes:
    """JSON of a request body. Raises InvalidRequest for text that is not Unicode, or what is no JSON."""
    try:
        return msgspec.json.encode(body)
    except (UnicodeEncodeError, TypeError, msgspec.EncodeError) as error:
        raise InvalidRequest(f"the request can't be written as JSON: {error}") from error
