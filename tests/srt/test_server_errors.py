"""What the server answers when it can't serve: unknown names, a full queue, a dead engine, a fault."""

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from support.fake_app import CHAT, HI, app_for, check_error
from support.fake_client import FakeClient
from support.http_server import ask, running

from stolon.errors import InternalError
from stolon.srt.server import ServerLimits


@pytest.fixture(scope="module")
def app():
    return app_for()


def test_unknown_routes_models_and_methods(app):
    assert check_error(ask(app, "GET", "/nope"), 404)["code"] == "not_found"
    assert check_error(ask(app, "GET", "/v1/models/"), 404)
    body = {"model": "gpt-x", "messages": HI, "prompt": "a"}
    answers = [ask(app, "POST", path, json=body) for path in (CHAT, "/v1/completions", "/tokenize")]
    for answer in (ask(app, "GET", "/v1/models/a/b"), *answers):
        error = check_error(answer, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["type"] == "invalid_request_error"
    answer = ask(app, "GET", CHAT)
    assert check_error(answer, 405)["code"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


def test_a_full_queue_turns_requests_away():
    client = FakeClient()
    client.start.clear()
    app = app_for(client, limits=ServerLimits(max_queued=2, retry_after=0.5))

    async def go():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            waiting = [
                asyncio.create_task(http.post(CHAT, json={"messages": HI})) for _ in range(2)
            ]
            while len(client.requests) < 2:
                await asyncio.sleep(0.005)
            refused = await http.post(CHAT, json={"messages": HI})
            client.start.set()
            served = [await task for task in waiting]
            after = await http.post("/v1/completions", json={"prompt": ["a", "b"]})
            too_many = await http.post("/v1/completions", json={"prompt": ["a", "b", "c"]})
            return refused, [*served, after], too_many

    refused, served, too_many = asyncio.run(go())
    assert check_error(refused, 429)["type"] == "rate_limit_error"
    assert refused.headers["retry-after-ms"] == "500"
    assert refused.headers["x-should-retry"] == "true"
    assert [answer.status_code for answer in served] == [200] * 3
    check_error(too_many, 400)
    assert app.state.server.dispatcher.queued == 0
    assert app.state.server.dispatcher.in_flight == 0
    assert b"stolon_admission_rejections_total 1.0" in ask(app, "GET", "/metrics").content


def test_a_place_is_held_until_the_answer_begins():
    client = FakeClient()
    client.gate.clear()  # after the first character
    body = {"prompt": "a"}

    def whole(http):
        return http.post("/v1/completions", json=body).status_code

    with (
        running(client, limits=ServerLimits(max_queued=1)) as server,
        httpx.Client(base_url=server.url, timeout=20) as http,
        ThreadPoolExecutor() as pool,
    ):
        with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
            next(stream.iter_text())
            first = pool.submit(whole, http)
            while len(client.requests) < 2:
                assert not first.done()  # turned away
                time.sleep(0.005)
            assert whole(http) == 429  # the other one runs, and has nothing to send yet
            client.gate.set()
            assert first.result() == 200
        assert whole(http) == 200


def test_a_dead_engine_is_503_everywhere_but_health():
    client = FakeClient()
    app = app_for(client)
    assert ask(app, "GET", "/ready").status_code == 200
    client.dead = True
    for body in ({"messages": HI}, {"messages": HI, "stream": True}):
        answer = ask(app, "POST", CHAT, json=body)
        assert check_error(answer, 503)["type"] == "server_error"
        assert answer.headers["x-should-retry"] == "true"
    for path in ("/ready", "/live"):
        check_error(ask(app, "GET", path), 503)
    assert ask(app, "GET", "/health").status_code == 200
    assert ask(app, "GET", "/metrics").status_code == 200
    assert app.state.server.dispatcher.queued == 0


def test_faults_are_generic_500s(caplog):
    client = FakeClient()

    def broken(*_):
        raise RuntimeError("secret at /secret/place")

    client.submit = broken
    with caplog.at_level(logging.CRITICAL):
        answer = ask(app_for(client), "POST", CHAT, json={"messages": HI})
        assert check_error(answer, 500)["message"] == "The server failed."
        assert answer.headers["x-should-retry"] == "false"
        client.submit = lambda *_: (_ for _ in ()).throw(InternalError("at /secret/place"))
        check_error(ask(app_for(client), "POST", CHAT, json={"messages": HI}), 500)
