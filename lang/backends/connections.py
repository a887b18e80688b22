"""Connections to one server, each with a client of its own.

The pool of an HTTP client looks through all its connections for every request, and with some hundreds of
them that takes longer than the request. Here each client has one connection, and the one that became idle
last is the next to be taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpx

from stolon.errors import EngineClosed

IDLE_SECONDS = 4.0
"""A connection that is idle for longer is closed: servers close theirs, often after five seconds."""


class Connections:
    """At most `limit` connections, opened as they are needed. They belong to the running loop.

    Whoever has a client closes it when they leave, once `aclose` was called. A client that somebody else
    closed while it was connecting would come to hold a connection that nobody knows of.
    """

    def __init__(self, new_client: Callable[[httpx.Limits], httpx.AsyncClient], limit: int) -> None:
        self.loop = asyncio.get_running_loop()
        self._new_client = new_client
        self._turns = asyncio.Semaphore(limit)
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()  # the longest idle first
        self._users: dict[object, asyncio.Task[Any]] = {}
        self._closed = False
        self._unused = asyncio.Event()  # set while there are no users
        self._unused.set()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses inside the ``with``. Waits for its turn.

        Raises EngineClosed, also inside the ``with``, after `aclose` from another task.
        """
        user = asyncio.current_task()
        assert user is not None
        async with self._turns:
            self._refuse_if_closed()
            client = self._take()
            self._users[use := object()] = user
            self._unused.clear()
            try:
                await self._close_the_old()
                yield client
            except asyncio.CancelledError:
                # Cancelled by `aclose` alone, not by the task's owner as well.
                if self._closed and user.uncancel() == 0:
                    self._refuse_if_closed()
                raise
            finally:
                del self._users[use]
                if self._closed:
                    await completed(client.aclose())
                else:
                    self._idle.append((monotonic(), client))
                if not self._users:
                    self._unused.set()

    async def aclose(self) -> None:
        """Close all, those in use too: their users are interrupted."""
        self._closed = True
        for user in set(self._users.values()):
            user.cancel()
        while self._idle:
            await self._idle.pop()[1].aclose()
        await self._unused.wait()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise EngineClosed("the connections to the server were closed")

    def _take(self) -> httpx.AsyncClient:
        if self._idle:
            return self._idle.pop()[1]
        return self._new_client(httpx.Limits(max_connections=1, keepalive_expiry=IDLE_SECONDS))

    async def _close_the_old(self) -> None:
        while self._idle and self._idle[0][0] < monotonic() - IDLE_SECONDS:
            await completed(self._idle.popleft()[1].aclose())


async def completed(work: Coroutine[Any, Any, None]) -> None:
    """Await work that cancelling does not interrupt; it is heard afterwards."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise
