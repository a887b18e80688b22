"""What goes wrong on purpose: bad bodies, missing keys, wrong hosts, full queues, a dead engine."""

import asyncio
import json
import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route
from support.fake_client import FakeClient
from support.http_server import ask, running

from stolon.errors import EngineClosed, EngineError, InternalError, InvalidRequest
from stolon.srt.server import ServerLimits, create_app
from stolon.srt.server.bodies import decode
from stolon.srt.server.gate import LOOPBACK_HOSTS, PUBLIC_PATHS
from stolon.srt.server.monitor import EngineMonitor

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-secret"


def app_for(client=None, **options):
    return create_app(client or FakeClient(), served_name="fake", **options)


def check_error(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str)
    assert isinstance(body["error"]["code"], str)
    assert answer.headers["x-request-id"]
    assert len(answer.text) < 1000
    for secret in ("Traceback", "/secret", "site-packages", ".py"):
        assert secret not in answer.text
    return body["error"]


DEEP = b'{"messages": ' + b"[" * 500 + b"]" * 500 + b"}"
DEEPER = b'{"messages": ' + b"[" * 500_000
LONE = rb'{"messages": [{"role": "user", "content": "\ud800 x"}]}'
MALFORMED = [
    b"",
    b" ",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"{}",
    b'{"messages": null}',
    b'{"messages": []}',
    b'{"messages": {}}',
    b'{"messages": "hi"}',
    b'{"messages": ["hi"]}',
    b'{"messages": [{}]}',
    b'{"messages": [{"role": "user"}]}',
    b'{"messages": [{"role": "wizard", "content": "x"}]}',
    b'{"messages": [{"role": "user", "content": 1}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
    b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}',
    b'{"messages": [{"role": "user", "content": null}]}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b"\xff\xfe{}",
    LONE,
    DEEP,
    DEEPER,
    b'{"messages": [],}',
    b"{'messages': []}",
    b'{"a": 1}{"b": 2}',
]
BAD_FIELDS = [
    '"temperature": NaN',
    '"temperature": Infinity',
    '"temperature": 1e999',
    '"temperature": -1',
    '"temperature": "hot"',
    '"temperature": true',
    '"top_p": 0',
    '"top_p": 1.5',
    '"top_k": -2',
    '"min_p": 2',
    '"n": 0',
    '"n": -1',
    '"n": 129',
    '"n": 1000000000000000000000000000000',
    '"n": 1.5',
    '"n": "2"',
    '"max_tokens": -1',
    '"max_tokens": 1e10',
    '"max_tokens": 99999999999999999999',
    '"min_tokens": 5, "max_tokens": 2',
    '"seed": 9223372036854775808',
    '"stop": 5',
    '"stop": ""',
    '"stop": [1]',
    '"stop": ' + json.dumps(["x"] * 33),
    '"stop": ' + json.dumps("x" * 2000),
    '"logit_bias": {"a": 1}',
    '"logit_bias": {"-1": 1}',
    '"logit_bias": {"258": 1}',
    '"logit_bias": {"1": "x"}',
    '"logit_bias": {"1": 1e39}',
    '"logit_bias": []',
    '"stop_token_ids": [99999999999999999999999]',
    '"stop_token_ids": ["a"]',
    '"top_logprobs": 21, "logprobs": true',
    '"top_logprobs": -1, "logprobs": true',
    '"logprobs": 3',
    '"stream": "yes"',
    '"stream_options": 5',
    '"response_format": "json"',
    '"response_format": {}',
    '"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}',
    '"structured_outputs": {}',
    '"structured_outputs": {"regex": "a", "choice": ["b"]}',
    '"structured_outputs": {"choice": []}',
    '"guided_json": "{"',
    '"guided_choice": [1]',
    '"tools": {}',
    '"cache_salt": ' + json.dumps("x" * 1000),
    '"priority": 99999999999',
    '"model": 5',
    '"presence_penalty": 1e300',
    '"repetition_penalty": 0',
    '"repetition_penalty": 1e-300',
]


TWICE = [
    (
        "/v1/chat/completions",
        b'{"temperature": 0, "messages": %s, "temperature": 1}',
        "temperature",
    ),
    ("/v1/chat/completions", b'{"messages": %s, "unknown": {"a": 1, "a": 2}}', "unknown.a"),
    (
        "/v1/chat/completions",
        b'{"messages": [{"role": "user", "content": "x", "role": "system"}]}',
        "messages.role",
    ),
    ("/v1/completions", rb'{"prompt": "\\", "n": 1, "\u006e" : 1}', "n"),
    ("/v1/completions", rb'{"prompt": "a", "a\"": 1, "a\u0022": 1}', 'a"'),
    (
        "/v1/completions",
        b'{"prompt": "a", "json_schema": {"type": "integer", "type": "string"}}',
        "json_schema.type",
    ),
    (
        "/generate",
        b'{"text": "a", "sampling_params": {"n": 1, "stop": ["}", "{"], "n": 2}}',
        "sampling_params.n",
    ),
    (
        "/generate",
        b'{"text": "a", "sampling_params": {"logit_bias": {"1": 1, "1": 2}}}',
        "sampling_params.logit_bias.1",
    ),
    (
        "/blocks",
        b'{"rid": "a", "segments": [{"type": "text", "text": "a", "text": "b"}]}',
        "segments.text",
    ),
    ("/tokenize", b'{"prompt": "a", "prompt": "b"}', "prompt"),
    ("/detokenize", b'{"tokens": [65], "tokens": [66]}', "tokens"),
]
ONCE = [
    (b'{"prompt": "{\\"n\\": 1, \\"n\\": 2}", "n": 1}', 200),
    (rb'{"prompt": "\\", "n": 1, "user": "\\\"n\\\": 1"}', 200),
    (
        b'{"prompt": "n", "user": "n", "n": 1, "x": [{"n": 1}, {"n": {"n": []}}], "y": {"n": 1}}',
        200,
    ),
    (b'{"prompt": ["n", "n", "\xc3\xa9"], "\xc3\xa9": 1, "n" : 1}', 200),
    (b'{"prompt": "a", "unknown": NaN}', 400),
    (b'{"prompt": "a", "unknown": [-Infinity]}', 400),
    (b'{"prompt": "a", "logit_bias": {"1": 1e999}}', 400),
]


@pytest.mark.parametrize(("path", "body", "param"), TWICE, ids=range(len(TWICE)))
def test_a_key_that_occurs_twice(app, path, body, param):
    if b"%s" in body:
        body %= json.dumps(HI).encode()
    answer = ask(app, "POST", path, content=body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == param
    assert f"the key {param.rpartition('.')[2]!r} occurs twice" in error["message"]


@pytest.mark.parametrize(("body", "status"), ONCE, ids=range(len(ONCE)))
def test_keys_that_only_look_like_it(app, body, status):
    assert ask(app, "POST", "/v1/completions", content=body).status_code == status


def test_looking_for_keys_takes_time_in_proportion_to_the_body(app):
    ids = b'{"prompt": [' + b"65," * 1_000_000 + b"65]}"
    start = time.monotonic()
    check_error(ask(app, "POST", "/v1/completions", content=ids), 400)
    assert time.monotonic() - start < 10


@pytest.fixture(scope="module")
def app():
    return app_for()


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies(app, body):
    error = check_error(ask(app, "POST", CHAT, content=body), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (rb'{"a": "\ud83d"}', r"\ud83d in a string is a lone surrogate (byte 7)"),
        (rb'{"a": "\ud83d and more"}', r"\ud83d in a string is a lone surrogate (byte 7)"),
        (
            rb'{"\ud83d\ude00": "\\ud83d\n\udE00"}',
            r"\udE00 in a string is a lone surrogate (byte 27)",
        ),
        (b'{"a": NaN}', "NaN is no JSON number (byte 6)"),
        (b'{"a": Infinity}', "Infinity is no JSON number (byte 6)"),
        (b'{"a": [1, -Infinity]}', "-Infinity is no JSON number (byte 10)"),
        (b'{"a": 01}', "invalid number (byte 7)"),
        (b'{"NaN": 1,}', "trailing comma in object (byte 10)"),
        (b'{"a": "', "it is cut off (byte 7)"),
        (rb'{"a": "\u00', "it is cut off (byte 11)"),
        (b'{"a": "\xed\xa0\x80"}', "Invalid UTF-8 encoded string"),
    ],
)
def test_malformed_bodies_are_told_where(body, reason):
    with pytest.raises(InvalidRequest) as caught:
        decode(body, dict, ServerLimits())
    assert caught.value.message == f"the request body is not valid JSON: {reason}"


def test_looking_for_surrogates_takes_time_in_proportion_to_the_body():
    begun = time.monotonic()
    for piece in (rb"\ud83d\ude00", rb"\u00e9", rb"\\", b"a", rb"\ud83d"):
        body = b'{"a": "' + piece * 200_000
        with pytest.raises(InvalidRequest, match="not valid JSON"):
            decode(body, dict, ServerLimits())
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("field", BAD_FIELDS, ids=lambda field: field[:40])
def test_bad_fields(app, field):
    body = '{"messages": [{"role": "user", "content": "Hi"}], ' + field + "}"
    error = check_error(ask(app, "POST", CHAT, content=body.encode()), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/generate", "/tokenize", "/detokenize"])
def test_every_route_with_a_body_refuses_bad_json(app, path):
    for body in (b"", b"{", b"[]", DEEP, DEEPER, b'{"model": 1}'):
        check_error(ask(app, "POST", path, content=body), 400)


def test_values_are_not_echoed(app):
    answer = ask(app, "POST", CHAT, json={"messages": HI, "n": "hunter2" * 100})
    assert "hunter2" not in answer.text


def test_nesting_is_checked_in_linear_time():
    hostile = b'{"x": ' + b"[" * 65 + b'"' + b'\\"' * 2_000_000
    begin = time.perf_counter()
    error = check_error(ask(app_for(), "POST", CHAT, content=hostile), 400)
    assert "nested deeper" in error["message"]
    many = b'{"x": [' + b"[]," * 400_000 + b"1]}"
    error = check_error(ask(app_for(), "POST", CHAT, content=many), 400)
    assert "arrays and objects" in error["message"]
    assert time.perf_counter() - begin < 3


def test_body_size():
    app = app_for(limits=ServerLimits(max_body_bytes=100))

    async def unannounced():
        for _ in range(50):
            yield b"x" * 10

    assert check_error(ask(app, "POST", CHAT, content=b"x" * 101), 413)["code"]
    check_error(ask(app, "POST", "/tokenize", content=unannounced()), 413)


@pytest.mark.parametrize("path", ["/generate", "/nope", "/v1/models"])
@pytest.mark.parametrize("key", [None, KEY])
def test_a_body_that_breaks_http_has_one_answer(caplog, path, key):
    with running(FakeClient(), api_key=key) as server:
        port = int(server.url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
            connection.sendall(head.encode() + b"zz\r\n{}")
            with connection.makefile("rb") as stream:
                answer = stream.read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.exc_info]


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


def test_models(app):
    listed = ask(app, "GET", "/v1/models").json()
    assert listed["object"] == "list"
    (model,) = listed["data"]
    assert model == ask(app, "GET", "/v1/models/fake").json()
    assert model["id"] == "fake"
    assert isinstance(model["created"], int)
    assert model["max_model_len"] == 4096


def test_request_ids(app):
    given = ask(app, "GET", "/health", headers={"x-request-id": "abc-1.2:3_4"})
    assert given.headers["x-request-id"] == "abc-1.2:3_4"
    for bad in ("a b", "x" * 129, "a\tb", "é"):
        answer = ask(app, "GET", "/health", headers={"x-request-id": bad.encode()})
        assert answer.headers["x-request-id"].startswith("req_")


def paths_of(app) -> set[tuple[str, str]]:
    """Every route of the application with each of its methods."""
    assert all(isinstance(route, Route | APIRoute) for route in app.routes)  # no mounts, no routers
    return {(route.path, method) for route in app.routes for method in route.methods}


def test_every_route_but_three_needs_the_key():
    client = FakeClient()
    app = app_for(client, api_key=KEY)
    routes = paths_of(app)
    assert len(routes) >= 15
    assert {"/health", "/ready", "/live"} == PUBLIC_PATHS
    for path, method in routes:
        path = path.replace("{model_id:path}", "fake")
        answer = ask(app, method, path)
        if method == "HEAD":
            assert answer.status_code == 401
            continue
        if path in PUBLIC_PATHS:
            assert answer.status_code == 200
            continue
        assert check_error(answer, 401)["type"] == "authentication_error"
        for headers in ({"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}):
            assert ask(app, method, path, headers=headers).status_code != 401
    assert client.requests == []
    assert client.flushed == 2


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": KEY},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": f"Bearer {KEY}x"},
        {"authorization": b"Bearer \xff\xfe"},
        {"x-api-key": ""},
        {"x-api-key": KEY[:-1]},
    ],
)
def test_wrong_keys(headers):
    check_error(ask(app_for(api_key=KEY), "GET", "/v1/models", headers=headers), 401)


@pytest.mark.parametrize(
    "path",
    [
        "//v1/models",
        "/v1//models",
        "/%2fv1/models",
        "/v1/models/.",
        "/health/../v1/models",
        "/health/",
        "/health%2f..%2fv1/models",
        "/Health",
        "/nope",
        "/openapi.json",
        "/docs",
    ],
)
def test_path_tricks_do_not_get_past_the_key(path):
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"x/health")],
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    asyncio.run(app_for(api_key=KEY)(scope, receive, send))
    assert sent[0]["status"] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:80", 200),
        ("[::1]:8000", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:8000", 403),
        ("", 403),
    ],
)
def test_host_check(host, status):
    app = app_for(allowed_hosts=LOOPBACK_HOSTS)
    answer = ask(app, "GET", "/health", headers={"host": host})
    assert answer.status_code == status
    if status != 200:
        check_error(answer, 403)


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


def test_server_info_has_no_secrets():
    answer = ask(app_for(api_key=KEY), "GET", "/server_info", headers={"x-api-key": KEY})
    assert answer.status_code == 200
    assert answer.json()["key_required"] is True
    for secret in (KEY, "/secret", "sk-"):
        assert secret not in answer.text


def test_flush_cache():
    client = FakeClient()
    assert ask(app_for(client), "POST", "/flush_cache").json() == {"success": True}
    assert client.flushed == 1


def test_metrics_count_tokens_times_and_statuses():
    client = FakeClient()
    app = app_for(client)
    client.counts.running, client.counts.waiting = 3, 4
    client.counts.kv_used, client.counts.kv_evictable = 800, 300
    client.counts.short_heads, client.counts.skipped_heads = 30, 40
    client.counts.prompt_tokens, client.counts.sampled_tokens = 10, 20
    ask(app, "POST", CHAT, json={"messages": HI, "stream": True})
    ask(app, "POST", CHAT, json={"messages": HI})
    ask(app, "POST", CHAT, content=b"{")
    ask(app, "GET", "/nope")
    lines = ask(app, "GET", "/metrics").text.splitlines()
    for line in (
        "stolon_num_requests_running 3.0",
        "stolon_num_requests_waiting 4.0",
        "stolon_kv_cache_usage_perc 0.5",
        "stolon_prompt_tokens_total 10.0",
        "stolon_generation_tokens_total 20.0",
        "stolon_short_head_rows_total 30.0",
        "stolon_skipped_head_rows_total 40.0",
        "stolon_time_to_first_token_seconds_count 2.0",
        "stolon_inter_token_latency_seconds_count 6.0",
        "stolon_e2e_request_latency_seconds_count 2.0",
        'stolon_request_success_total{finished_reason="stop"} 2.0',
        f'stolon_http_requests_total{{method="POST",route="{CHAT}",status="200"}} 2.0',
        f'stolon_http_requests_total{{method="POST",route="{CHAT}",status="400"}} 1.0',
        'stolon_http_requests_total{method="GET",route="other",status="404"} 1.0',
    ):
        assert line in lines


def test_liveness_follows_progress_not_answers():
    client, now = FakeClient(), [0.0]
    monitor = EngineMonitor(client, window=10, clock=lambda: now[0])

    async def go():
        await monitor.observe()
        now[0] = 100.0
        await monitor.observe()  # idle: nothing to advance
        assert monitor.live
        client.counts.running = 1
        await monitor.observe()
        now[0] = 109.0
        assert monitor.live
        now[0] = 111.0
        await monitor.observe()
        assert not monitor.live  # work, but no step
        client.counts.steps += 1
        await monitor.observe()
        assert monitor.live

        def silent():
            raise EngineError("no answer")

        client.stats = silent
        now[0] = 120.0
        await monitor.observe()
        assert monitor.live  # slow is not dead
        now[0] = 122.0
        assert not monitor.live

        def gone():
            raise EngineClosed("gone")

        client.stats = gone
        await monitor.observe()
        assert monitor.closed

    asyncio.run(go())
