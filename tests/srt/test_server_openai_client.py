"""The official client against a real port; disconnects; the drain."""

import asyncio
import contextlib
import json
import socket
import threading
import time

import httpx
import openai
import pytest
from support.fake_client import FakeClient
from support.http_server import Running, events, running

from stolon.constrained import GrammarSpec
from stolon.srt.protocol import Gen
from stolon.srt.server import ServerLimits

HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-secret"


@pytest.fixture(scope="module")
def served():
    client = FakeClient("Hello wörld")
    with running(client, api_key=KEY) as server:
        yield client, server
    client.close()


@pytest.fixture
def sdk(served):
    with openai.OpenAI(base_url=f"{served[1].url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def until(condition, seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.005)


def test_models(sdk):
    assert [model.id for model in sdk.models.list()] == ["fake"]
    assert sdk.models.retrieve("fake").object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("org/other")
    assert caught.value.code == "model_not_found"


def test_chat(sdk):
    answer = sdk.chat.completions.create(model="fake", messages=HI, n=2)
    assert [c.message.content for c in answer.choices] == ["Hello wörld", "Hello wörld1"]
    assert [c.finish_reason for c in answer.choices] == ["stop", "stop"]
    assert answer.usage.prompt_tokens_details.cached_tokens == 2


def test_chat_stream(sdk):
    stream = sdk.chat.completions.create(
        model="fake", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
    assert text == "Hello wörld"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 12


def test_async_client(served):
    async def go():
        async with openai.AsyncOpenAI(base_url=f"{served[1].url}/v1", api_key=KEY) as client:
            whole = await client.chat.completions.create(model="fake", messages=HI)
            stream = await client.chat.completions.create(model="fake", messages=HI, stream=True)
            text = "".join([c.choices[0].delta.content or "" async for c in stream])
            return whole.choices[0].message.content, text

    assert asyncio.run(go()) == ("Hello wörld", "Hello wörld")


def test_logprobs_validate_as_the_clients_types(sdk):
    answer = sdk.chat.completions.create(model="fake", messages=HI, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == "Hello wörld"
    assert all(len(entry.top_logprobs) == 4 for entry in content)


def test_json_schema_reaches_the_engine(served, sdk):
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "null"}}}
    sdk.chat.completions.create(
        model="fake",
        messages=HI,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": schema, "strict": True},
        },
    )
    gen = served[0].requests[-1].segments[-1]
    assert isinstance(gen, Gen)
    assert gen.grammar == GrammarSpec(
        kind="json_schema", text=json.dumps(schema, separators=(",", ":"))
    )


def test_completions(sdk):
    answer = sdk.completions.create(model="fake", prompt="Say", echo=True, logprobs=2, max_tokens=1)
    choice = answer.choices[0]
    assert choice.text == "SayH"
    assert choice.logprobs.token_logprobs == [None, -1.0, -1.0, -1.0]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    chunks = sdk.completions.create(model="fake", prompt="Say", stream=True)
    assert "".join(c.choices[0].text for c in chunks) == "Hello wörld"


def test_errors_become_the_clients_exceptions(served, sdk):
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(model="fake", messages=HI, temperature=-1)
    assert caught.value.param == "temperature"
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="other", messages=HI)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "x" * 9999}]
        )
    assert caught.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=f"{served[1].url}/v1", api_key="wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


def test_the_client_retries_when_the_queue_is_full():
    client = FakeClient()
    client.start.clear()
    limits = ServerLimits(max_queued=1, retry_after=0.01)
    with running(client, limits=limits) as server, httpx.Client(base_url=server.url) as http:
        first = threading.Thread(target=lambda: http.post("/v1/completions", json={"prompt": "a"}))
        first.start()
        until(lambda: client.requests)
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as impatient:
            with pytest.raises(openai.RateLimitError) as caught:
                impatient.completions.create(model="fake", prompt="b")
            assert caught.value.code == "overloaded"
            client.start.set()
            first.join()
            assert impatient.completions.create(model="fake", prompt="b").choices
    client.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "decoding"])
def test_disconnect_aborts(stream, phase):
    client = FakeClient()
    (client.start if phase == "queued" else client.gate).clear()
    with running(client) as server:
        body = json.dumps({"messages": HI, "stream": stream, "n": 2}).encode()
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        with socket.create_connection(address) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            until(lambda: client.requests)
            if stream and phase == "decoding":
                assert b"200" in connection.recv(100)
        until(lambda: client.aborted)
        assert client.aborted == [client.requests[0].rid]
        dispatcher = server.server._context.dispatcher
        until(lambda: not dispatcher.in_flight and not dispatcher.queued)
        client.start.set()
        client.gate.set()
    client.close()


def drain(server: Running, client: FakeClient, *, stops: int = 1) -> tuple[str, float]:
    """A stream that is open when the server is stopped; its text, and how long the stop took."""
    with (
        httpx.Client(base_url=server.url, timeout=20) as http,
        http.stream(
            "POST", "/v1/chat/completions", json={"messages": HI, "stream": True}
        ) as answer,
    ):
        pieces = answer.iter_text()
        text = next(pieces)
        begin = time.monotonic()
        for _ in range(stops):
            server.server.stop()
        if stops == 1 and server.server._context.limits.drain_timeout > 1:
            client.gate.set()
        text += "".join(pieces)
    server.thread.join(10)
    assert not server.thread.is_alive()
    return text, time.monotonic() - begin


def connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def test_stopping_lets_running_requests_finish():
    client = FakeClient()
    client.gate.clear()
    with running(client, limits=ServerLimits(drain_timeout=10)) as server:
        text, _ = drain(server, client)
    data = events(text)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in data[:-1]) == "Hello!"
    client.close()


def test_a_draining_server_is_there_for_whoever_watches_it():
    client = FakeClient()
    client.gate.clear()
    with (
        running(client, limits=ServerLimits(drain_timeout=20)) as server,
        httpx.Client(base_url=server.url) as kept,
        httpx.Client(base_url=server.url, timeout=20) as http,
    ):
        assert kept.get("/ready").status_code == 200
        body = {"messages": HI, "stream": True}
        with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            server.server.stop()
            time.sleep(0.4)  # the server looks every tenth of a second whether it may end
            for get in (kept.get, lambda path: httpx.get(server.url + path)):
                answers = [get(path) for path in ("/ready", "/live", "/metrics", "/health")]
                assert [one.status_code for one in answers] == [503, 200, 200, 200]
                assert answers[0].json()["error"]["code"] == "draining"
            refused = httpx.post(server.url + "/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            client.gate.set()
            text += "".join(pieces)
        assert events(text)[-1] == "[DONE]"
        server.thread.join(10)
        assert not connects(int(server.url.rsplit(":", 1)[1]))
    client.close()


@pytest.mark.parametrize(("timeout", "stops"), [(0.2, 1), (30, 2)])
def test_what_does_not_finish_in_time_ends_with_an_error(timeout, stops):
    client = FakeClient()
    client.gate.clear()
    with running(client, limits=ServerLimits(drain_timeout=timeout)) as server:
        text, seconds = drain(server, client, stops=stops)
    *_, error, done = events(text)
    assert error["error"]["code"] == "engine_closed"
    assert done == "[DONE]"
    assert client.aborted == [client.requests[0].rid]
    assert seconds < 5
    client.close()


def test_a_draining_server_takes_nothing_new():
    client = FakeClient()
    with running(client) as server, httpx.Client(base_url=server.url) as http:
        server.server._context.dispatcher.draining = True
        refused = http.get("/ready")
        assert refused.status_code == 503
        assert refused.headers["x-should-retry"] == "false"
        refused = http.post("/v1/completions", json={"prompt": "a"})
        assert refused.status_code == 503
        assert refused.headers["x-should-retry"] == "true"
        assert refused.headers["connection"] == "close"
        assert http.get("/health").status_code == 200
    client.close()
