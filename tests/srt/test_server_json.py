"""How strictly JSON is read: no key twice, no NaN, no lone surrogate, and told where."""

import json
import time

import pytest
from support.fake_app import CHAT, HI, app_for, check_error
from support.http_server import ask

from stolon.errors import InvalidRequest
from stolon.srt.server import ServerLimits
from stolon.srt.server.bodies import decode

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


@pytest.fixture(scope="module")
def app():
    return app_for()


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


def test_nesting_is_checked_in_linear_time():
    hostile = b'{"x": ' + b"[" * 65 + b'"' + b'\\"' * 2_000_000
    begin = time.perf_counter()
    error = check_error(ask(app_for(), "POST", CHAT, content=hostile), 400)
    assert "nested deeper" in error["message"]
    many = b'{"x": [' + b"[]," * 400_000 + b"1]}"
    error = check_error(ask(app_for(), "POST", CHAT, content=many), 400)
    assert "arrays and objects" in error["message"]
    assert time.perf_counter() - begin < 3
