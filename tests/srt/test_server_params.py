"""Errors point at the field that the client sent, under the name that it has there."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.engines import hash_engine
from support.fake_client import FakeClient
from support.http_server import ask

from stolon.srt.server import create_app
from stolon.srt.server.blocks import TokenizeBody as PartsBody
from stolon.srt.server.native_schemas import GenerateBody, NativeSampling
from stolon.srt.server.openai_schemas import ChatBody, CompletionBody
from stolon.srt.server.text_routes import DetokenizeBody, TokenizeBody

HI = [{"role": "user", "content": "Hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"messages": HI},
    TEXT: {"prompt": "a"},
    "/generate": {"text": "a"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [65]},
    "/blocks/tokenize": {"parts": [["a", False]]},
}
BODIES: dict[str, type[msgspec.Struct]] = {
    CHAT: ChatBody,
    TEXT: CompletionBody,
    "/generate": GenerateBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/blocks/tokenize": PartsBody,
}


@pytest.fixture(scope="module")
def app():
    return create_app(FakeClient(), served_name="fake")


@pytest.fixture(scope="module")
def engine_app():
    engine = hash_engine()
    yield create_app(engine, served_name="fake")
    engine.close()


def told(app: Any, path: str, fields: dict[str, Any]) -> dict[str, Any]:
    answer = ask(app, "POST", path, content=json.dumps({**GOOD[path], **fields}).encode())
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    return error


def bad_value(kind: type[msgspec.Struct], name: str) -> Any:
    """A value that no field of this type takes; of those that take any, one that is refused."""
    (field,) = (field for field in msgspec.structs.fields(kind) if field.name == name)
    if name in ("messages", "stream_options"):
        return 5
    text = str(field.type)
    return 5 if text == "typing.Any" or "dict" in text or "Body" in text else {"wrong": 1}


@pytest.mark.parametrize(
    ("path", "name"),
    [(path, name) for path, kind in BODIES.items() for name in kind.__struct_fields__],
)
def test_a_value_of_a_wrong_type(app, path, name):
    assert told(app, path, {name: bad_value(BODIES[path], name)})["param"] == name


@pytest.mark.parametrize("name", NativeSampling.__struct_fields__)
def test_a_value_of_a_wrong_type_among_the_sampling_params(app, name):
    value = bad_value(NativeSampling, name)
    error = told(app, "/generate", {"sampling_params": {name: value}})
    assert error["param"] == f"sampling_params.{name}"


OUT_OF_RANGE: dict[str, Any] = {
    "n": 0,
    "max_tokens": -1,
    "min_tokens": -1,
    "temperature": -1,
    "top_p": 2,
    "top_k": -2,
    "min_p": 2,
    "presence_penalty": 11,
    "frequency_penalty": -11,
    "repetition_penalty": 101,
    "logit_bias": {"1": 2e6},
    "seed": 2**64 - 1,
    "stop": "",
    "stop_token_ids": [9999],
    "stop_regex": ["x" * 2000],
}
KEYS = {"logit_bias": {"x": 1}}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("name", "value"), [*OUT_OF_RANGE.items(), *KEYS.items()])
def test_a_value_out_of_range(app, path, name, value):
    assert told(app, path, {name: value})["param"] == name


@pytest.mark.parametrize(("name", "value"), [*OUT_OF_RANGE.items(), *KEYS.items()])
def test_a_value_out_of_range_among_the_sampling_params(app, name, value):
    names = {
        "max_tokens": "max_new_tokens",
        "min_tokens": "min_new_tokens",
        "seed": "sampling_seed",
    }
    name = names.get(name, name)
    error = told(app, "/generate", {"sampling_params": {name: value}})
    assert error["param"] == f"sampling_params.{name}"
    for engines, wire in names.items():
        assert f"{engines} " not in error["message"].replace(wire, "")


def test_the_length_of_a_chat_has_two_names(app):
    assert told(app, CHAT, {"max_completion_tokens": -1})["param"] == "max_completion_tokens"
    error = told(app, CHAT, {"max_completion_tokens": 3, "min_tokens": 5})
    assert error["param"] == "min_tokens"
    assert error["message"] == "min_tokens (5) is above max_completion_tokens (3)"


# What only the engine finds, on each route: the field, the sampling fields of the body, where they are told.
FOUND_LATER: list[tuple[dict[str, Any], dict[str, str]]] = [
    (
        {"regex": "a", "min_tokens": 9, "max_tokens": 20},
        {CHAT: "min_tokens", TEXT: "min_tokens", "/generate": "sampling_params.min_new_tokens"},
    ),
    (
        {"stop_regex": ["("]},
        {CHAT: "stop_regex", TEXT: "stop_regex", "/generate": "sampling_params.stop_regex"},
    ),
    ({"regex": "("}, {CHAT: "regex", TEXT: "regex", "/generate": "sampling_params.regex"}),
    (
        {"json_schema": {"type": "nonsense"}},
        {CHAT: "json_schema", TEXT: "json_schema", "/generate": "sampling_params.json_schema"},
    ),
    ({"guided_regex": "("}, {CHAT: "guided_regex", TEXT: "guided_regex"}),
    (
        {"structured_outputs": {"regex": "("}},
        {CHAT: "structured_outputs", TEXT: "structured_outputs"},
    ),
    (
        {"regex": "a", "after": "x" * 100_000},
        {CHAT: "after", TEXT: "after", "/generate": "sampling_params.after"},
    ),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "path", "param"),
    [(fields, path, param) for fields, told in FOUND_LATER for path, param in told.items()],
)
def test_what_the_engine_finds(engine_app, fields, path, param, stream):
    if path == "/generate":
        renamed = {"min_tokens": "min_new_tokens", "max_tokens": "max_new_tokens"}
        fields = {"sampling_params": {renamed.get(key, key): v for key, v in fields.items()}}
    assert told(engine_app, path, {**fields, "stream": stream})["param"] == param


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
        (TEXT, {"prompt": "x" * 600}, "prompt"),
        ("/generate", {"text": "x" * 600}, "text"),
        ("/generate", {"text": None, "input_ids": [65] * 600}, "input_ids"),
        ("/generate", {"return_logprob": True, "logprob_start_len": 5}, "logprob_start_len"),
    ],
)
def test_prompts_that_the_engine_refuses(engine_app, path, fields, param):
    assert told(engine_app, path, fields)["param"] == param
