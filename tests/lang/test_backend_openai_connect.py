"""How servers are reached: addresses, keys, models, dialects, and the backend as an engine."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.openai_answers import (
    CHAT,
    TEXT,
    ask,
    backend,
    bare,
    events,
    piece,
    said,
    written,
)
from support.wire_server import WireServer

import stolon as sl
from stolon.errors import (
    BackendError,
    InvalidRequest,
    StolonError,
)
from stolon.lang.backends.anthropic import Anthropic
from stolon.lang.backends.http_options import HTTPOptions
from stolon.lang.backends.openai import Crusoe, OpenAI
from stolon.srt.protocol import Event, Failed, Gen, PromptLogprobs, Request, Sampling, Text


def served(engine: OpenAI, request: Request) -> list[Event]:
    found: list[Event] = []
    over = threading.Event()

    def take(event: Event) -> None:
        found.append(event)
        if isinstance(event, Failed) or type(event).__name__ == "SampleDone":
            over.set()

    engine.submit(request, take)
    assert over.wait(10)
    return found


def test_what_no_server_is_asked_for_is_refused() -> None:
    server = WireServer({TEXT: written("x")})
    gen = Gen(sampling=Sampling(max_tokens=4))
    for name, value in (("salt", "s"), ("priority", 1), ("prompt_logprobs", PromptLogprobs())):
        request = Request(rid="1", segments=[Text("a"), gen], **{name: value})
        (failed,) = served(backend(server), request)
        assert isinstance(failed, Failed)
        assert failed.param == name
    assert not server.requests


def test_nothing_is_asked_for_no_tokens() -> None:
    server = WireServer({})
    assert ask.run(backend=backend(server), max_tokens=0)["a"] == ""


def test_cancelling_closes_the_stream() -> None:
    server = WireServer({CHAT: events(*[piece("x")] * 100_000)}, chunk=64)
    engine = backend(server)
    state = ask.run(backend=engine, max_tokens=8, stream=True)
    pieces = state.text_iter("a")
    next(pieces)
    state.cancel()
    with pytest.raises(StolonError):
        list(pieces)
    engine.close()
    assert server.streams[0].closed
    assert engine.stats().running == 0


def test_other_addresses_and_keys() -> None:
    server = WireServer({"/openai/v1/chat/completions": said("x")})
    azure = OpenAI(
        "deployment",
        is_azure=True,
        base_url="https://mine.openai.azure.com",
        api_key="secret",
        options=server.options(),
    )
    assert ask.run(backend=azure, max_tokens=8)["a"] == "x"
    assert server.headers[0]["api-key"] == "secret"
    assert "authorization" not in server.headers[0]
    assert server.bodies[0]["max_completion_tokens"] == 8
    server = WireServer({CHAT: said("x")})
    assert ask.run(backend=Crusoe("m", api_key="k", options=server.options()), max_tokens=8)["a"]
    assert server.headers[0]["authorization"] == "Bearer k"


@pytest.mark.parametrize(
    ("make", "variable"),
    [
        (lambda: OpenAI("m"), "OPENAI_API_KEY"),
        (lambda: OpenAI("m", base_url="https://api.openai.com"), "OPENAI_API_KEY"),
        (lambda: Anthropic("m"), "ANTHROPIC_API_KEY"),
        (lambda: Crusoe("m"), "CRUSOE_API_KEY"),
    ],
)
def test_a_service_without_a_key_is_refused_before_anything_is_sent(
    make: Callable[[], Any], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidRequest, match="needs a key") as refused:
        make()
    assert refused.value.param == "api_key"
    assert variable in (refused.value.hint or "")
    monkeypatch.setenv(variable, "k")
    make().close()


def test_other_ways_to_give_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    OpenAI("m", options=HTTPOptions(api_key="k")).close()
    OpenAI("m", options=HTTPOptions(headers={"Authorization": "Bearer k"})).close()
    OpenAI("m", base_url="http://localhost:1", dialect="openai").close()
    with pytest.raises(InvalidRequest, match="Azure needs a key"):
        OpenAI("m", is_azure=True, base_url="https://mine.openai.azure.com")


def test_the_only_model_is_taken_and_one_of_several_must_be_named() -> None:
    listed = {"data": [{"id": "only", "owned_by": "vllm"}]}
    server = WireServer({"/v1/models": listed, CHAT: said("x")})
    engine = OpenAI(base_url="http://host:8000/v1", options=server.options())
    assert (engine.dialect, engine.info.name) == ("vllm", "only")
    listed["data"].append({"id": "other", "owned_by": "vllm"})
    with pytest.raises(BackendError, match="only, other"):
        OpenAI(base_url="http://host:8000", options=server.options())


def test_ollama_is_spoken_to_in_its_own_api() -> None:
    line = {"message": {"role": "assistant", "content": "He"}, "done": False}
    last = {
        "message": {"role": "assistant", "content": "llo"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 4,
        "eval_count": 2,
    }
    server = WireServer({"/api/chat": [json.dumps(line), json.dumps(last)]}, chunk=5)
    engine = backend(server, "ollama")
    state = ask.run(backend=engine, max_tokens=8, temperature=0.5, seed=1, stream=True)
    assert state["a"] == "Hello"
    assert engine.token_usage == (4, 2)
    body = server.bodies[0]
    assert body["options"]["num_predict"] == 8
    assert body["options"]["top_k"] == 0
    assert body["options"]["temperature"] == 0.5
    assert "temperature" not in body
    server = WireServer({"/api/generate": {"response": "x", "done": True, "done_reason": "length"}})
    state = sl.function(bare).run(backend=backend(server, "ollama"), max_tokens=8)
    assert state.get_meta_info("a")["finish_reason"]["type"] == "length"
    assert server.bodies[0]["raw"] is True


def test_connect_speaks_the_dialect_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    engine = sl.connect("http://127.0.0.1:9", dialect="sglang", model="m")
    assert isinstance(engine, OpenAI)
    assert engine.row.title == "SGLang"
    assert isinstance(sl.connect("https://api.openai.com", model="m", api_key="k"), OpenAI)
    with pytest.raises(InvalidRequest, match="no dialect"):
        sl.connect("http://127.0.0.1:9", dialect="vlm", model="m")
    with pytest.raises(InvalidRequest, match=r"sl\.LiteLLM"):
        sl.connect("http://127.0.0.1:9", dialect="litellm", model="m")
