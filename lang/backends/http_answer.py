"""What comes back over HTTP: a body in pieces or whole, read as JSON, and whether to ask again."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.http_errors import printable, unreachable

MAX_ANSWER_BYTES = 64 << 20

_RETRIED = frozenset({429, 502, 503, 504})


class Answer:
    """An answer with status 200 to 299 whose body has not been read."""

    def __init__(self, response: httpx.Response, server: str) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._response = response
        self._stream = response.stream
        self._server = server

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives. Raises BackendUnavailable if it breaks off or nothing comes in time."""
        try:
            # Not `aiter_raw`, which closes at the end: see `HTTPClient.stream`.
            async for chunk in self._stream:
                yield chunk
        except httpx.HTTPError as error:
            raise unreachable(self._server, error, begun=True) from None

    async def read(self, limit: int = MAX_ANSWER_BYTES) -> bytes:
        """The whole body. Raises BackendError if it is larger than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise BackendError(f"{self._server} sent more than {limit} bytes for one answer")
        return bytes(body)


def decoded(data: bytes, kind: Any = Any, *, server: str) -> Any:
    """JSON of an answer, as `kind`. Raises BackendError that says what is wrong with it."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise BackendError(
            f"{server} answered with something else than was asked for: {printable(str(error))}"
        ) from error


def retry_advice(response: httpx.Response) -> tuple[bool, float | None]:
    """(whether to try again, after how many seconds if the server says so)."""
    headers = response.headers
    should = headers.get("x-should-retry", "").lower()
    again = should == "true" or (response.status_code in _RETRIED and should != "false")
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "")
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text):
            return again, float(text) * unit
    return again, None


def is_plain(response: httpx.Response) -> bool:
    """Whether the body is sent as it is: compressed ones are not taken."""
    return response.headers.get("content-encoding", "identity").lower() in ("identity", "")
