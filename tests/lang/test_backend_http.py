"""HTTP for backends: what is asked again, for how long, and what ends as which error."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest
from support.canned_http import Canned
from support.http_script import Script, ask, ok

import stolon as sl
from stolon.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    Overloaded,
)
from stolon.lang.backends import http as client_module
from stolon.lang.backends.http import HTTPClient, HTTPOptions, Retries


@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("slow"),
        httpx.RemoteProtocolError("gone"),
        httpx.ReadError("reset"),
        httpx.Response(503),
        httpx.Response(429, headers={"retry-after": "0"}),
        httpx.Response(502),
        httpx.Response(500, headers={"x-should-retry": "true"}),
    ],
)
def test_passing_trouble_is_retried(trouble):
    script = Script(trouble, ok(a=1))
    assert ask(script, body={"q": 1}, api_key="k") == {"a": 1}
    assert [request.content for request in script.requests] == [b'{"q":1}'] * 2
    assert script.requests[0].headers["authorization"] == "Bearer k"
    assert str(script.requests[0].url) == "http://host/base/x"


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (httpx.ReadTimeout("late"), BackendUnavailable),
        (httpx.Response(400, json={"error": {"message": "m", "param": "p"}}), InvalidRequest),
        (httpx.Response(401), AccessDenied),
        (httpx.Response(404), BackendError),
        (httpx.Response(422, json={"detail": [{"msg": "m"}]}), InvalidRequest),
        (httpx.Response(500), BackendError),
        (httpx.Response(503, headers={"x-should-retry": "false"}), BackendUnavailable),
        (httpx.Response(429, headers={"retry-after": "3600"}), Overloaded),
        (httpx.Response(307, headers={"location": "http://evil/"}), BackendError),
        (
            httpx.Response(
                200, stream=httpx.ByteStream(b"x"), headers={"content-encoding": "gzip"}
            ),
            BackendError,
        ),
        (httpx.Response(200, content=b"[1, 2"), BackendError),
        (httpx.Response(200, content=b"[" * 10**6), BackendError),
    ],
)
def test_other_trouble_is_not(trouble, kind):
    script = Script(trouble)
    with pytest.raises(kind):
        ask(script)
    assert len(script.requests) == 1


def test_retries_end():
    script = Script(httpx.ConnectError("refused"))
    with pytest.raises(BackendUnavailable, match="http://host/base can't be reached"):
        ask(script, count=2)
    assert len(script.requests) == 3


@pytest.mark.parametrize("trouble", [httpx.ConnectError("refused"), httpx.ConnectTimeout("late")])
def test_a_server_that_never_answered_is_soon_given_up(trouble, monkeypatch):
    now = 0.0
    monkeypatch.setattr(client_module, "monotonic", lambda: now)
    script = Script(trouble)

    async def go():
        nonlocal now
        http = HTTPClient(
            "http://host",
            HTTPOptions(
                transport=lambda: Canned(script), retries=Retries(count=4, first_wait=0.001)
            ),
        )
        tried = []
        for answer, seconds in ((trouble, 0.0), (trouble, 1.5), (ok(), 0.0), (trouble, 0.0)):
            script.answers, script.requests = [answer], []
            now += seconds
            try:
                await http.json("GET", "/")
            except BackendUnavailable as error:
                tried.append((len(script.requests), error.hint))
        return tried

    never = "is it running, and are the host and the port of the address right?"
    # Within the first second it is asked again, later once, and once it was reached always.
    assert asyncio.run(go()) == [(5, never), (1, never), (5, "is it still running?")]


def test_a_server_that_is_lost_before_its_first_answer_is_waited_for(monkeypatch):
    monkeypatch.setattr(client_module, "FIRST_CONTACT", 0.0)
    lives = []

    async def dies(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        lives.pop().close()
        writer.transport.abort()

    async def answers(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        writer.close()

    def at_attempt(number):
        attempts.append(number)
        if number == 2:
            task = asyncio.start_server(answers, "127.0.0.1", port, reuse_address=True)
            lives.append(asyncio.ensure_future(task))

    async def go():
        nonlocal port
        lives.append(await asyncio.start_server(dies, "127.0.0.1", 0))
        port = lives[0].sockets[0].getsockname()[1]
        retries = Retries(count=4, first_wait=0.02)
        http = HTTPClient(f"http://127.0.0.1:{port}", HTTPOptions(retries=retries))
        try:
            return await http.json("GET", "/", at_attempt)
        finally:
            await http.aclose()
            if lives:
                (await lives[0]).close()

    port = 0
    attempts = []
    assert asyncio.run(go()) == {}
    assert attempts[:3] == [0, 1, 2]


def test_nobody_there_is_told_at_once_and_with_what_the_system_says():
    with socket.socket() as bound:  # nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(BackendUnavailable) as caught:
            sl.connect(url)
    assert time.monotonic() - start < 3
    assert str(caught.value) == (
        f"{url} can't be reached: Connection refused "
        "(is it running, and are the host and the port of the address right?)"
    )


def test_the_time_a_server_asks_for_is_kept():
    start = time.monotonic()
    ask(Script(httpx.Response(429, headers={"retry-after-ms": "200"}), ok()))
    assert time.monotonic() - start >= 0.2


def test_waits_grow_and_differ():
    retries = Retries(count=10, first_wait=1.0, longest_wait=8.0)
    for attempt in range(10):
        longest = min(2.0**attempt, 8.0)
        waits = {retries.wait(attempt, None) for _ in range(20)}
        assert len(waits) > 1
        assert all(longest / 2 <= wait <= longest for wait in waits)
    assert retries.wait(10, None) is None


def test_a_wait_can_be_cancelled():
    async def go():
        http = HTTPClient(
            "http://host",
            HTTPOptions(
                transport=lambda: Canned(Script(httpx.ReadError("lost"))),
                retries=Retries(first_wait=20.0),
            ),
        )
        async with asyncio.timeout(0.05):
            await http.json("GET", "/")

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(go())
    assert time.monotonic() - start < 5


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": {"message": "why", "type": "t"}}', "why"),
        (b'{"error": "why"}', "why"),
        (b'{"message": "why"}', "why"),
        (b'{"detail": "why"}', "why"),
        (b'{"detail": [{"loc": ["a"], "msg": "why"}]}', "why"),
        (b'{"object": "error", "message": "why"}', "why"),
        (b"why\r\n\x1b[31m", "why"),
        (b"\xff why", "why"),
        (b"why " * 10_000, "why"),
    ],
)
def test_the_servers_words_are_told(body, told):
    with pytest.raises(InvalidRequest, match=told) as caught:
        ask(Script(httpx.Response(400, content=body)))
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


def test_pages_of_proxies_are_not():
    with pytest.raises(BackendError) as caught:
        ask(Script(httpx.Response(500, content=b"<html><body>nginx")))
    assert "nginx" not in str(caught.value)
