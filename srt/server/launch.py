"""`stolon serve`: an engine process, and the HTTP server in this one."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from stolon.errors import EngineClosed, InvalidRequest
from stolon.srt.client import EngineClient
from stolon.srt.protocol import Speculation
from stolon.srt.server.app import create_app
from stolon.srt.server.context import ServerContext
from stolon.srt.server.gate import LOOPBACK_HOSTS
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient

log = logging.getLogger("stolon.server")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LAST_WORDS = 2.0  # seconds for error chunks to reach their clients after the drain


def serve(
    model: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    served_name: str | None = None,
    api_key: str | None = None,
    insecure: bool = False,
    limits: ServerLimits | None = None,
    dtype: str = "auto",
    kv_tokens: int | None = None,
    max_running: int | None = None,
    threads: int | None = None,
    context_length: int | None = None,
    speculation: Speculation = "auto",
    launch: Callable[[EngineOptions], EngineClient] = ZmqEngineClient.launch,
) -> None:
    """Serve `model` over HTTP until SIGINT or SIGTERM; then drain and return.

    Port 0 picks a free one. `served_name` is the model's name for clients.
    Raises InvalidRequest for a bind that other machines reach without a key, or for an address that
    can't be had, and the engine's own error if the model can't be loaded.
    """
    limits = limits or ServerLimits()
    listener = open_listener(host, port)  # bound only: nobody can connect yet
    try:
        check_bind(host, api_key=api_key, insecure=insecure)
        client = launch(
            EngineOptions(
                model=model,
                dtype=dtype,
                kv_tokens=kv_tokens,
                max_running=max_running,
                threads=threads,
                context_length=context_length,
                speculation=speculation,
            )
        )
        try:
            name = served_name or public_name(model)
            app = create_app(
                client,
                served_name=name,
                api_key=api_key,
                limits=limits,
                allowed_hosts=allowed_hosts(host),
            )
            address = listener.getsockname()
            shown = f"[{host}]" if ":" in host else host
            banner = f"stolon: serving {name} at http://{shown}:{address[1]}/v1  (Ctrl-C to stop)"
            try:
                run_server(app, listener, banner=banner)
            except OSError as error:
                # Another server that was bound to the same address listens by now.
                if error.errno == errno.EADDRINUSE:
                    raise _no_listener(host, port, error) from error
                raise
        finally:
            client.close()
    finally:
        listener.close()


def public_name(model: str) -> str:
    """The name clients see: a file's or folder's own name, never where it lies."""
    path = Path(model)
    return (path.stem if path.suffix == ".gguf" else path.name) if path.exists() else model


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, api_key: str | None, insecure: bool) -> None:
    """Raise InvalidRequest for a bind beyond this machine without a key, unless `insecure`."""
    if api_key is not None and not api_key.strip():
        raise InvalidRequest("the API key is empty", param="api_key")
    if api_key is None and not insecure and not is_loopback(host):
        raise InvalidRequest(
            f"binding {host} lets other machines use this server without a key",
            param="host",
            hint="give --api-key, or --insecure if the network is trusted",
        )


def allowed_hosts(host: str) -> frozenset[str] | None:
    """The Host headers a bind accepts: on loopback only loopback's names, else any."""
    if not is_loopback(host):
        return None
    return LOOPBACK_HOSTS | {f"[{host}]" if ":" in host else host}


def open_listener(host: str, port: int) -> socket.socket:
    """A bound TCP socket. Raises InvalidRequest for an address that can't be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, ValueError) as error:  # ValueError: not a name at all
        raise InvalidRequest(
            f"{host!r} is no name or address of this machine",
            param="host",
            hint="choose another with --host",
        ) from error
    try:
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_listener(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _no_listener(host, port, error) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _no_listener(host: str, port: int, error: OSError) -> InvalidRequest:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return InvalidRequest(f"{where} is in use", param="port", hint="choose another with --port")
    if error.errno == errno.EACCES:
        return InvalidRequest(
            f"{where} is reserved for the system", param="port", hint="choose another with --port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return InvalidRequest(
            f"{host} is no address of this machine", param="host", hint="choose another with --host"
        )
    return InvalidRequest(f"{where} can't be had: {error.strerror or error}", param="host")


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

    At the first signal /ready turns 503 and nothing new is accepted; running requests get
    `drain_timeout` to finish, then end with an error. A second signal skips the wait.
    """

    def __init__(
        self, config: uvicorn.Config, context: ServerContext, *, banner: str | None = None
    ) -> None:
        super().__init__(config)
        self._context = context
        self._banner = banner
        self._hurry = threading.Event()

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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.dispatcher.draining = True
        deadline = asyncio.create_task(self._enforce())
        try:
            await super().shutdown(sockets=sockets)
        finally:
            deadline.cancel()

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
