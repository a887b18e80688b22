"""A transport for httpx that answers from a function, with bodies that arrive over time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx

Handler = Callable[[httpx.Request], Awaitable[httpx.Response]]


class Canned(httpx.AsyncBaseTransport):
    """Answers each request with what `handler` gives for it."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        response = await self._handler(request)
        if not response.is_stream_consumed:
            return response
        # httpx takes a body that was given at once for one that has been read.
        headers = {k: v for k, v in response.headers.items() if k != "content-length"}
        body = httpx.ByteStream(response.content)
        return httpx.Response(response.status_code, headers=headers, stream=body)
