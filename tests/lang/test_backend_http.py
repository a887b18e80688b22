"""HTTP for backends: retries, limits, errors, and server-sent events in any pieces."""

from __future__ import annotations

import asyncio
import socket
import time

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.canned_http import Canned

import stolon as sl
from stolon.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    InvalidRequest,
    Overloaded,
)
from stolon.lang import backends
from stolon.lang.backends import connections, sse
from stolon.lang.backends import http as client_module
from stolon.lang.backends.http import HTTPClient, HTTPOptions, Retries
from stolon.lang.backends.stolon_server import RemoteEngine


class Script:
    """Answers one after another: a Response, or an exception to raise."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def ask(script, *, count=3, first_wait=0.001, body=None, path="/x", **options):
    async def go():
        http = HTTPClient(
            "http://host/base/",
            HTTPOptions(
                transport=lambda: Canned(script),
                retries=Retries(count=count, first_wait=first_wait, longest_wait=0.5),
                **options,
            ),
        )
        try:
            return await http.json("POST", path, body)
        finally:
            await http.aclose()

    return asyncio.run(go())


def ok(**fields):
    return httpx.Response(200, json=fields)


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


NO_ADDRESSES = [
    "",
    5,
    b"http://h",
    "host",
    "http://",
    "ftp://h",
    "http://h:abc",
    "http://h:99999",
    "http://h:0",
    "http://h:-1",
    "http://[::1",
    "http://a b",
    "http://a..b",
    "http://" + "a" * 64,
    "http://h/\ud800",
    "http://me:secret@h",
    "http://me:secret@h:99999",
    "http://me:secret@[::1",
    "me:secret@h",
    "http://h/?q=1",
]


@pytest.mark.parametrize("url", NO_ADDRESSES)
@pytest.mark.parametrize(
    "make",
    [
        lambda url: sl.OpenAI("m", base_url=url, api_key="k", dialect="compatible"),
        lambda url: sl.OpenAI(base_url=url, api_key="k"),
        lambda url: sl.OpenAI("m", base_url=url, api_key="k", is_azure=True),
        lambda url: sl.Crusoe("m", base_url=url, api_key="k"),
        lambda url: sl.Anthropic("m", base_url=url, api_key="k"),
        lambda url: sl.LiteLLM("m", base_url=url),
        lambda url: sl.connect(url),
        lambda url: sl.connect(url, dialect="vllm", model="m"),
        lambda url: sl.RuntimeEndpoint(url),
        lambda url: RemoteEngine(url),
    ],
)
def test_what_is_no_address_is_refused_by_name(make, url):
    with pytest.raises(InvalidRequest) as caught:
        make(url)
    assert caught.value.param == "base_url"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://a_b.c-d.:1/v1/", "http://[::1]:65535", "http://é.example", "HTTP://H"],
)
def test_what_is_an_address_is_taken(url):
    sl.OpenAI("m", base_url=url, dialect="compatible").close()


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


def test_a_body_that_is_no_json():
    for body in ({"a": "\ud800"}, {"a": object()}):
        with pytest.raises(InvalidRequest):
            ask(Script(ok()), body=body)


def test_keys_are_not_shown():
    options = HTTPOptions(api_key="secret", headers={"x-key": "secret"})
    assert "secret" not in repr(options)


@pytest.mark.parametrize("key", ["", "sécret", "secret\n", "sec\x00ret", "secret ", 5])
@pytest.mark.parametrize(
    "make",
    [
        lambda key: HTTPOptions(api_key=key),
        lambda key: sl.OpenAI("m", api_key=key),
        lambda key: sl.OpenAI("m", base_url="http://h", api_key=key, dialect="vllm"),
        lambda key: sl.OpenAI(
            "m", base_url="https://a.openai.azure.com", api_key=key, is_azure=True
        ),
        lambda key: sl.Crusoe("m", api_key=key),
        lambda key: sl.Anthropic("m", api_key=key),
        lambda key: sl.Anthropic("m", base_url="http://h", api_key=key),
        lambda key: sl.LiteLLM("m", api_key=key),
        lambda key: sl.connect("http://h", api_key=key),
        lambda key: sl.RuntimeEndpoint("http://h", api_key=key),
        lambda key: sl.Runtime(model_path="m", api_key=key),
    ],
)
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(make, key, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    with pytest.raises(InvalidRequest) as caught:
        make(key)
    assert caught.value.param == "api_key"
    assert not key or str(key) not in str(caught.value)
    assert "ret" not in str(caught.value)


def test_so_is_one_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret\r\n")
    with pytest.raises(InvalidRequest, match="api_key must be printable"):
        sl.OpenAI("m")


@pytest.mark.parametrize(
    "headers",
    [
        {"x": "secret\r\nY: z"},
        {"x": "sécret"},
        {"x": " secret"},
        {"x": b"secret"},
        {"x y": "secret"},
        {"": "secret"},
        {"secret\n": "x"},
        {5: "secret"},
        [("x", "secret")],
        5,
    ],
)
def test_headers_that_are_none_are_refused_and_not_shown(headers):
    for make in (
        lambda: HTTPOptions(headers=headers),
        lambda: sl.connect("http://h", headers=headers),
    ):
        with pytest.raises(InvalidRequest) as caught:
            make()
        assert caught.value.param == "headers"
        assert "ret" not in str(caught.value)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("Illegal header value b'Bearer secret\\n'", "Illegal header value"),
        ("illegal status line: bytearray(b'x-api-key: secret')", "illegal status line"),
        ('illegal header line: bytearray(b"it\'s secret")', "illegal header line"),
        ("b'secret'", "RemoteProtocolError"),
        ("Server disconnected", "Server disconnected"),
    ],
)
def test_a_lost_connection_quotes_no_bytes(told, shown):
    with pytest.raises(BackendUnavailable) as caught:
        ask(Script(httpx.RemoteProtocolError(told)), count=0)
    assert str(caught.value).endswith(f": {shown}")


def test_options_are_public_and_checked():
    assert backends.HTTPOptions is HTTPOptions
    assert backends.Retries is Retries
    with pytest.raises(InvalidRequest, match="retries must be a Retries"):
        HTTPOptions(retries=4)


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
