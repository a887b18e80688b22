"""How many connections there are, and server-sent events in any pieces."""

from __future__ import annotations

import asyncio
import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.canned_http import Canned
from support.http_script import ok

from stolon.errors import (
    BackendError,
    EngineClosed,
)
from stolon.lang.backends import connections, sse
from stolon.lang.backends.http import HTTPClient, HTTPOptions


def test_only_so_many_at_once():
    running = most = 0

    async def handle(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return ok()

    async def go():
        options = HTTPOptions(transport=lambda: Canned(handle), max_connections=4)
        http = HTTPClient("http://host", options)
        await asyncio.gather(*(http.json("GET", "/") for _ in range(40)))
        await http.aclose()

    asyncio.run(go())
    assert most == 4


def test_connections_are_taken_up_again_and_closed_when_idle(monkeypatch):
    now = 0.0
    monkeypatch.setattr(connections, "monotonic", lambda: now)
    made = []

    class Client:
        def __init__(self, limits):
            assert limits.max_connections == 1
            made.append(self)
            self.closed = False

        async def aclose(self):
            self.closed = True

    async def go():
        nonlocal now
        kept = connections.Connections(Client, 3)

        async def use(seconds):
            async with kept.one() as client:
                await asyncio.sleep(seconds)
                return client

        await asyncio.gather(*(use(0.001) for _ in range(30)))
        assert len(made) == 3
        first = await use(0)
        now += 3
        assert await use(0) is first  # the one that was used last
        now += 2
        assert await use(0) is first
        assert [client.closed for client in made].count(True) == 2
        await asyncio.gather(*(use(0.001) for _ in range(3)))
        assert len(made) == 5
        await kept.aclose()
        assert all(client.closed for client in made)

    asyncio.run(go())


@pytest.mark.parametrize("turns", range(12))
def test_closing_interrupts_a_request_and_leaves_no_connection(turns):
    """Also one that is just connecting."""
    open_ones = set()

    async def never_answers(reader, writer):
        open_ones.add(writer)
        await reader.read()
        open_ones.discard(writer)
        writer.close()

    async def go():
        server = await asyncio.start_server(never_answers, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        http = HTTPClient(f"http://{host}:{port}")
        asking = asyncio.create_task(http.json("GET", "/"))
        for _ in range(turns):
            await asyncio.sleep(0)
        await http.aclose()
        with pytest.raises(EngineClosed):
            await asyncio.wait_for(asking, 5)
        with pytest.raises(EngineClosed):
            await http.json("GET", "/")
        server.close()
        await server.wait_closed()
        while open_ones:
            await asyncio.sleep(0.001)
        gc.collect()

    asyncio.run(go())


LINES = st.lists(
    st.sampled_from(["data: a", "data:b", "data", "data: [1,2]", ": c", "event: x", "", "", "dat"])
)


@given(LINES, st.sampled_from(["\n", "\r", "\r\n"]), st.lists(st.integers(1, 5)), st.booleans())
def test_events_in_any_pieces(lines, ending, sizes, bom):
    text = "".join(line + ending for line in lines).encode()
    whole = (b"\xef\xbb\xbf" if bom else b"") + text

    async def chunks():
        at = 0
        for size in sizes:
            yield whole[at : at + size] if at or size >= 3 else whole[: (size := 3)]
            at += size
        yield whole[at:]

    async def go():
        return [event async for event in sse.data(chunks())]

    expected, parts = [], []
    for line in lines:
        if line.startswith("data"):
            parts.append(line[5:].removeprefix(" "))
        elif not line and parts:
            expected.append("\n".join(parts).encode())
            parts = []
    assert asyncio.run(go()) == expected


def test_events_are_bounded():
    async def chunks(piece):
        while True:
            yield piece

    async def go(piece):
        return [event async for event in sse.data(chunks(piece), limit=10_000)]

    for piece in (b"x" * 100, b"data: x\n"):
        with pytest.raises(BackendError, match="10000"):
            asyncio.run(go(piece))
