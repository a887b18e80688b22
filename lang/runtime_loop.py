"""One asyncio loop thread per process, for what has no loop or thread of its own.

It runs async programs that are called from synchronous code, and sends blocks that had to wait for
others. Synchronous code waits on latches, so it works in plain scripts, in threads and inside a
loop that is already running (a notebook).
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from stolon.errors import InvalidRequest
from stolon.lang.latch import mailbox_of
from stolon.lang.location import program_line, started_at

T = TypeVar("T")


class RuntimeLoop:
    """A daemon thread that runs an event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._mailbox = mailbox_of(self.loop)
        self._thread = threading.Thread(target=self._main, name="stolon-loop", daemon=True)
        self._thread.start()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while True:
            # A task that ends with one of these stops the loop, too. Who waits for it is told; others go on.
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
                return

    def is_current(self) -> bool:
        """Whether the caller runs on the loop's own thread."""
        return threading.current_thread() is self._thread

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run a plain function on the loop, after everything that was handed over before."""
        self._mailbox.post(partial(function, *args))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop, with the caller's context variables."""
        with started_at(program_line()):
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop)


_lock = threading.Lock()
_current: RuntimeLoop | None = None


def runtime_loop() -> RuntimeLoop:
    """The loop of this process, started at the first call (again after a fork of the process)."""
    global _current
    with _lock:
        if _current is None:
            _current = RuntimeLoop()
        return _current


def _after_fork() -> None:
    """In the child of a fork: the loop's thread is not there, nor a thread that may hold the lock."""
    global _lock, _current
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


def on_runtime_loop() -> bool:
    """Whether the caller runs on that loop's own thread, where waiting would be for ever."""
    return _current is not None and _current.is_current()


def refuse_on_loop(what: str) -> None:
    """Raise where a blocking call would stop the loop that has to answer it."""
    if on_runtime_loop():
        raise InvalidRequest(
            f"{what} would block the event loop that runs this program",
            where=program_line(),
            hint="use 'await' with the async form: arun, aget, async_sync",
        )


def spawn(function: Callable[[], T]) -> Future[T]:
    """Run a function in a thread of its own, with the caller's context variables.

    Not in a pool: programs wait for other programs, which in a full pool would never start.
    """
    future: Future[T] = Future()
    with started_at(program_line()):
        context = contextvars.copy_context()

    def main() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = context.run(function)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=main, name="stolon-program", daemon=True).start()
    return future


async def wait_for(future: Future[T]) -> T:
    """Await a future of another thread. Cancelling the wait does not cancel the future."""
    inner = asyncio.wrap_future(future)
    # Once the wait is cancelled nobody is left to read how it ends, and asyncio would print that.
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(inner)
