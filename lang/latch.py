"""Waiting across threads and event loops: what one thread settles, others wait for or await."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from stolon.errors import EngineClosed


class Latch:
    """Set once and for all. Any thread may set it, wait for it, or leave a callback.

    Holds no lock of its own: a list that every callback is taken from exactly once is enough, and
    a program of many thousand calls has a latch for each of them.

    What sets it runs in one process (an id; by default the one that makes it), and in no fork of that.
    """

    __slots__ = ("_callbacks", "_done", "_process")

    def __init__(self, process: int | None = None) -> None:
        self._done = False
        self._process = os.getpid() if process is None else process
        self._callbacks: list[Callable[[], object]] = []

    def done(self) -> bool:
        """Whether it is set."""
        return self._done

    def set(self) -> None:
        """Set it and run the callbacks. Setting it again does nothing."""
        self._done = True
        self._release()

    def then(self, callback: Callable[[], object]) -> None:
        """Call `callback` when it is set: in the thread that sets it, or here if it is set already.

        The thread may be an engine's: callbacks hand over, they do no work and call no engine.
        """
        self._callbacks.append(callback)
        if self._done:
            self._release()

    def _release(self) -> None:
        callbacks = self._callbacks
        callbacks.reverse()  # first come, first served; taken from the end, as thousands may wait
        while callbacks:
            try:
                callback = callbacks.pop()
            except IndexError:  # another thread took it
                return
            callback()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until it is set, at most `timeout` seconds; whether it is. Ctrl-C interrupts it.

        Raises EngineClosed in a fork of the process that would set it.
        """
        if self._done:
            return True
        self._check_process()
        held = threading.Lock()
        held.acquire()
        self.then(held.release)
        return held.acquire(timeout=-1 if timeout is None else timeout)

    async def arrive(self) -> None:
        """Await it, as `wait` does. Cancelling the wait leaves it as it is."""
        if self._done:
            return
        self._check_process()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        mailbox = mailbox_of(loop)

        def arrived() -> None:
            if not future.done():
                future.set_result(None)

        def wake() -> None:
            mailbox.post(arrived)

        self.then(wake)
        try:
            await future
        except asyncio.CancelledError:
            with suppress(ValueError):
                self._callbacks.remove(wake)
            raise

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineClosed(
                "this part of the program runs in another process, which this one was forked from",
                hint="run the program in this process, or read what it brings before the fork",
            )


class Signal:
    """Something changed: a condition that both threads and coroutines can wait for.

    Take a waiter first, then look at the state, then wait: a change in between is not missed.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._next: Latch | None = None

    def waiter(self) -> Latch:
        """A latch that the next `notify` sets."""
        with self._lock:
            if self._next is None:
                self._next = Latch(self._process)
            return self._next

    def notify(self) -> None:
        """Wake every waiter."""
        if self._next is None:
            return
        with self._lock:
            latch, self._next = self._next, None
        if latch is not None:
            latch.set()


class Mailbox:
    """Functions that other threads want an event loop to call, in order.

    Waking a loop costs a system call: however much arrives before it wakes, it is woken once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._posts: deque[Callable[[], object]] = deque()
        self._woken = False

    def post(self, function: Callable[[], object]) -> None:
        """Have the loop call `function`. A loop that is closed has nobody left who would wait."""
        self._posts.append(function)
        if self._woken:
            return
        self._woken = True
        loop = self._loop()
        if loop is None or loop.is_closed():
            self._posts.clear()
        elif running_loop() is loop:
            loop.call_soon(self._deliver)
        else:
            with suppress(RuntimeError):  # closed just now
                loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before looking: a post from now on wakes the loop again.
        self._woken = False
        while self._posts:
            self._posts.popleft()()


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs the calling code, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


def mailbox_of(loop: asyncio.AbstractEventLoop) -> Mailbox:
    """The one mailbox of a loop."""
    mailbox = _mailboxes.get(loop)
    if mailbox is None:
        with _lock:
            mailbox = _mailboxes.setdefault(loop, Mailbox(loop))
    return mailbox
