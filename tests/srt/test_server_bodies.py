"""Bodies that the server refuses: malformed, with bad fields, too large, or breaking HTTP."""

import json
import socket

import pytest
from support.fake_app import CHAT, HI, KEY, app_for, check_error
from support.fake_client import FakeClient
from support.http_server import ask, running

from stolon.srt.server import ServerLimits

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


@pytest.fixture(scope="module")
def app():
    return app_for()


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_bodies(app, body):
    error = check_error(ask(app, "POST", CHAT, content=body), 400)
    assert error["type"] == "invalid_request_error"


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
