"""Running the application until it is told to stop, and its end: what runs is given time to finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from stolon.errors import EngineClosed
from stolon.srt.server.context import ServerContext

log = logging.getLogger("stolon.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_WORDS = 2.0  # seconds for error chunks to reach their clients after the drain


def run_server(app: FastAPI, listener: socket.socket, *, banner: str | None = None) -> None:
    """Run the application on `listener` until a signal (in the main thread) or
    `DrainingServer.stop`.
    """
    server_for(app, banner=banner).run(sockets=[listener])


def server_for(app: FastAPI, *, banner: str | None = None) -> DrainingServer:
    """A uvicorn server for an application of `create_app`."""
    context: ServerContext = app.state.server
    config = uvicorn.Config(
        app,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=None,
    )
    return DrainingServer(config, context, banner=banner)


class DrainingServer(uvicorn.Server):
    """uvicorn with our shutdown.

    At the first signal /ready turns 503 and new generations are refused; running requests get
    `drain_timeout` to finish, then end with an error. A second signal skips the wait. Until they have
    ended, connections are accepted: whoever watches the server sees it drain, not fail.
    """

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, *, banner: str | None = None
    ) -> None:
        super().__init__(config)
        self._context = context
        self._banner = banner
        self._hurry = threading.Event()
        self._deadline: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """What a signal does. Thread-safe."""
        if self.should_exit:
            self._hurry.set()
        self._context.dispatcher.draining = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As in uvicorn, but a signal that was handled is not raised again: a drained server exits
        with 0.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._banner:
            print(self._banner, flush=True)

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop listening: once uvicorn would, and what was accepted has ended."""
        if not await super().on_tick(counter):
            return False
        dispatcher = self._context.dispatcher
        self._begin_drain()
        return self.force_exit or not (dispatcher.in_flight or dispatcher.queued)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        deadline = self._begin_drain()
        try:
            await super().shutdown(sockets=sockets)
        finally:
            deadline.cancel()

    def _begin_drain(self) -> asyncio.Task[None]:
        """The end of the drain, which begins with the first call."""
        self._context.dispatcher.draining = True
        if self._deadline is None:
            self._deadline = asyncio.create_task(self._enforce())
        return self._deadline

    async def _enforce(self) -> None:
        """End what the drain leaves over."""
        loop = asyncio.get_running_loop()
        seconds = self._context.limits.drain_timeout
        if self._context.dispatcher.in_flight:
            log.warning("stopping; requests that run get %g s (Ctrl-C again ends them)", seconds)
        end = loop.time() + seconds
        while loop.time() < end and not self._hurry.is_set():
            await asyncio.sleep(0.05)
        dispatcher = self._context.dispatcher
        if dispatcher.in_flight:
            log.warning("%d requests did not finish in time", dispatcher.in_flight)
        dispatcher.fail_all(EngineClosed("the server is shutting down"))
        await asyncio.sleep(_LAST_WORDS)
        self.force_exit = True
