"""`stolon serve`: an engine process, and the HTTP server in this one."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from stolon.srt.client import EngineClient
from stolon.srt.protocol import Speculation
from stolon.srt.server.app import create_app
from stolon.srt.server.draining import run_server
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.listener import allowed_hosts, check_bind, no_listener, open_listener
from stolon.srt.server.options import EngineOptions
from stolon.srt.server.zmq_client import ZmqEngineClient


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
    Raises InvalidRequest for an option out of range, a bind that other machines reach without a key, or an
    address that can't be had, all before the model is looked at, and the engine's own error if that
    can't be loaded.
    """
    limits = limits or ServerLimits()
    options = EngineOptions(
        model=model,
        dtype=dtype,
        kv_tokens=kv_tokens,
        max_running=max_running,
        threads=threads,
        context_length=context_length,
        speculation=speculation,
    )
    options.check()
    listener = open_listener(host, port)  # bound only: nobody can connect yet
    try:
        check_bind(host, api_key=api_key, insecure=insecure)
        client = launch(options)
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
                    raise no_listener(host, port, error) from error
                raise
        finally:
            client.close()
    finally:
        listener.close()


def public_name(model: str) -> str:
    """The name clients see: a file's or folder's own name, never where it lies."""
    path = Path(model)
    return (path.stem if path.suffix == ".gguf" else path.name) if path.exists() else model
