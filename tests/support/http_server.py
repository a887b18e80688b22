"""A server of tests: the application on a real loopback port, in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from stolon.srt.client import EngineClient
from stolon.srt.server.app import create_app
from stolon.srt.server.draining import DrainingServer, server_for
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.listener import open_listener


@dataclass
class Running:
    url: str
    server: DrainingServer
    thread: threading.Thread


@contextlib.contextmanager
def running(
    client: EngineClient, *, limits: ServerLimits | None = None, api_key: str | None = None
) -> Iterator[Running]:
    """Serve `client` as the model ``fake`` until the block ends."""
    app = create_app(client, served_name="fake", limits=limits, api_key=api_key)
    listener = open_listener("127.0.0.1", 0)
    server = server_for(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    port = listener.getsockname()[1]
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield Running(f"http://127.0.0.1:{port}", server, thread)
    finally:
        server.stop()
        thread.join(timeout=20)
        listener.close()
        assert not thread.is_alive()


def ask(app: FastAPI, method: str, path: str, **options: Any) -> httpx.Response:
    """One request to an application in process."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(go())


def events(text: str) -> list[Any]:
    """The data of a stream: parsed JSON, and the string [DONE] at its end."""
    lines = [line for line in text.split("\n\n") if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    data = [line.removeprefix("data: ") for line in lines]
    assert data[-1] == "[DONE]"
    return [json.loads(item) for item in data[:-1]] + ["[DONE]"]
