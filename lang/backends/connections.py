"""Connections to one server, each with a client of its own.

The pool of an HTTP client looks through all its connections for every request, and with some hundreds of
them that takes longer than the request. Here each client has one connection, and the one that became idle
last is the next to be taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import httpx

IDLE_SECONDS = 4.0
"""A connection that is idle for longer is closed: servers close theirs, often after five seconds."""


class Connections:
    """At most `limit` connections, opened as they are needed. They belong to the running loop."""

    def __init__(self, new_client: Callable[[httpx.Limits], httpx.AsyncClient], limit: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._new_client = new_client
        self._turns = asyncio.Semaphore(limit)
        self._clients: set[httpx.AsyncClient] = set()
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()  # the longest idle first

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses inside the ``with``. Waits for its turn."""
        async with self._turns:
            client = await self._take()
            try:
                yield client
            finally:
                self._idle.append((monotonic(), client))

    async def aclose(self) -> None:
        """Close all, those in use too."""
        clients, self._clients = self._clients, set()
        self._idle.clear()
        for client in clients:
            await client.aclose()

    async def _take(self) -> httpx.AsyncClient:
        if not self._idle:
            client = self._new_client(
                httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS)
            )
            self._clients.add(client)
            return client
        _, client = self._idle.pop()
        while self._idle and self._idle[0][0] < monotonic() - IDLE_SECONDS:
            _, old = self._idle.popleft()
            self._clients.discard(old)
            await old.aclose()
        return client
