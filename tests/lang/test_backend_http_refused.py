"""Addresses, keys, headers and bodies that no request can hold are refused, and no secret is shown."""

from __future__ import annotations

import httpx
import pytest
from support.http_script import Script, ask, ok

import stolon as sl
from stolon.errors import (
    BackendUnavailable,
    InvalidRequest,
)
from stolon.lang import backends
from stolon.lang.backends.http import HTTPOptions, Retries
from stolon.lang.backends.stolon_server import RemoteEngine

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
