"""The requests of a backend that are under way: a task for each, on the runtime loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from stolon.errors import Aborted, EngineClosed, InternalError, InvalidRequest, StolonError
from stolon.lang.runtime_loop import runtime_loop

OnEnd = Callable[[StolonError | None], None]


class UnderWay:
    """Begins, cancels and ends requests. Thread-safe.

    Args:
        server: what answers them, for messages.
    """

    def __init__(self, server: str) -> None:
        self._server = server
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._rids: set[str] = set()
        self._lock = threading.Lock()  # guards `_rids` and `_closed`
        self._closed = False

    def __len__(self) -> int:
        return len(self._rids)

    def begin(
        self, rid: str, serve: Callable[[], Coroutine[Any, Any, None]], on_end: OnEnd
    ) -> None:
        """Run `serve()` on the loop, in the caller's context variables.

        `on_end` is called once, whatever happens, with what ended it early: Aborted if it was cancelled.

        Raises:
            EngineClosed: after `close`.
        """
        with self._lock:
            if self._closed:
                raise EngineClosed(f"the connection to {self._server} was closed")
            taken = rid in self._rids
            self._rids.add(rid)
        if taken:
            on_end(InvalidRequest(f"request id {rid!r} is in use", param="rid"))
        else:
            runtime_loop().call(self._begin, rid, serve, on_end, contextvars.copy_context())

    def abort(self, rid: str) -> None:
        """Cancel a request; unknown ids are ignored."""
        runtime_loop().call(self._abort, rid)

    def close(self, then: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """End all requests and refuse others, then run `then()`. Idempotent if that is.

        Waits until it is done, but for on the loop's own thread.
        """
        with self._lock:
            self._closed = True
        closing = runtime_loop().submit(self._close(then))
        if not runtime_loop().is_current():
            closing.result()

    # -- on the loop -----------------------------------------------------------------------------

    def _begin(
        self,
        rid: str,
        serve: Callable[[], Coroutine[Any, Any, None]],
        on_end: OnEnd,
        context: contextvars.Context,
    ) -> None:
        task = asyncio.get_running_loop().create_task(serve(), context=context)
        self._tasks[rid] = task
        # Not in a `finally` of the coroutine: a task that is cancelled before its first step never enters it.
        task.add_done_callback(lambda task: self._ended(rid, task, on_end))

    def _ended(self, rid: str, task: asyncio.Task[None], on_end: OnEnd) -> None:
        del self._tasks[rid]
        with self._lock:
            self._rids.discard(rid)
        error = Aborted("the request was cancelled") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StolonError):
            fault = InternalError(f"{type(error).__name__} while {self._server} answered: {error}")
            fault.__cause__ = error
            error = fault
        on_end(error)

    def _abort(self, rid: str) -> None:
        if task := self._tasks.get(rid):
            task.cancel()

    async def _close(self, then: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # Those of a process that this one is a fork of are on another loop, which runs there.
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks.values() if task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await then()
