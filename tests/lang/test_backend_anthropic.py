"""Programs on Anthropic's Messages API, and on LiteLLM."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.wire_server import Status, WireServer

import stolon as sl
from stolon.errors import BackendError, InvalidRequest, Overloaded
from stolon.lang.backends.anthropic import Anthropic
from stolon.lang.backends.litellm import LiteLLM, VertexAI

PATH = "/v1/messages"


def said(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 7, "output_tokens": 2, "cache_read_input_tokens": 3},
    } | more


def claude(server: WireServer) -> Anthropic:
    return Anthropic("claude", api_key="secret", base_url="http://host", options=server.options())


@sl.function
def talk(s: sl.ProgramState, **options: Any) -> None:
    s += sl.system("Be brief.") + sl.user("Hi") + sl.assistant(sl.gen("a", **options))
    s += sl.user("Bye") + sl.assistant(sl.gen("b", **options))


def test_the_system_message_stands_apart_and_stays_in_the_program() -> None:
    server = WireServer({PATH: said("Hello")})
    engine = claude(server)
    state = talk.run(backend=engine, max_tokens=8, temperature=0.0, top_k=5)
    first, second = server.bodies
    assert first == {
        "model": "claude",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "Hi"}],
        "system": "Be brief.",
        "temperature": 0.0,
        "top_k": 5,
        "stream": False,
    }
    assert second["system"] == "Be brief."
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "user"]
    assert state.messages()[0]["role"] == "system"
    assert server.headers[0]["x-api-key"] == "secret"
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    assert "authorization" not in server.headers[0]
    meta = state.get_meta_info("a")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (10, 3, 2)
    assert engine.token_usage == (20, 4)


def stream(*events: dict[str, Any]) -> list[str]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}" for event in events]


START = {"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 7}}}
END = {
    "type": "message_delta",
    "delta": {"stop_reason": "stop_sequence", "stop_sequence": "END"},
    "usage": {"output_tokens": 2},
}


def delta(text: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}


@pytest.mark.parametrize("chunk", [1, 10_000])
def test_streams_and_stop_sequences(chunk: int) -> None:
    ping = {"type": "ping"}
    lines = stream(START, ping, delta("Hel"), delta("lo"), END, {"type": "message_stop"})
    server = WireServer({PATH: lines}, chunk=chunk)
    state = talk.run(backend=claude(server), max_tokens=8, stop="END", stream=True)
    assert list(state.text_iter("a")) == ["Hel", "lo"]
    meta = state.get_meta_info("a")
    assert meta["finish_reason"] == {"type": "stop", "matched": "END"}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (7, 2)
    assert server.bodies[0]["stop_sequences"] == ["END"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (stream(START, {"type": "error", "error": {"message": "overloaded"}}), "overloaded"),
        (stream(START, delta("x")), "without saying that it is complete"),
    ],
)
def test_streams_that_fail(lines: list[str], words: str) -> None:
    state = talk.run(backend=claude(WireServer({PATH: lines})), max_tokens=8, stream=True)
    with pytest.raises(BackendError, match=words):
        state["a"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": 8, "return_logprob": True}, "return_logprob"),
        ({"max_tokens": 8, "frequency_penalty": 1.0}, "frequency_penalty"),
        ({"max_tokens": 8, "regex": "a+"}, "regex"),
    ],
)
def test_what_it_has_not_is_refused(options: dict[str, Any], param: str) -> None:
    server = WireServer({})
    with pytest.raises(InvalidRequest, match="Anthropic can't honour") as refused:
        talk.run(backend=claude(server), **options)
    assert refused.value.param == param
    assert not server.requests


def test_messages_only() -> None:
    @sl.function
    def bare(s: sl.ProgramState) -> None:
        s += "Hi" + sl.gen("a")

    @sl.function
    def late(s: sl.ProgramState) -> None:
        s += sl.user("Hi") + sl.system("Be brief.") + sl.assistant(sl.gen("a"))

    engine = claude(WireServer({}))
    with pytest.raises(InvalidRequest, match="Anthropic can't generate here"):
        bare.run(backend=engine, max_tokens=8)
    with pytest.raises(InvalidRequest, match="a system message after the beginning"):
        late.run(backend=engine, max_tokens=8)


def test_answers_that_are_none() -> None:
    with pytest.raises(BackendError, match="refusal"):
        talk.run(backend=claude(WireServer({PATH: said("", stop_reason="refusal")})), max_tokens=8)
    busy = Status(429, {"error": {"message": "too many"}}, {"x-should-retry": "false"})
    with pytest.raises(Overloaded, match="too many"):
        talk.run(backend=claude(WireServer({PATH: busy})), max_tokens=8)
    with pytest.raises(InvalidRequest, match="name one"):
        Anthropic()


# -- LiteLLM -----------------------------------------------------------------------------------------


class FakeLiteLLM:
    """The part of the library that is used."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    async def acompletion(self, **arguments: Any) -> Any:
        self.calls.append(arguments)
        choice = {"index": 0, "finish_reason": "stop"}
        if arguments.get("top_p") == 0.5:
            error = RuntimeError("top_p is not supported")
            error.status_code = 400  # type: ignore[attr-defined]
            raise error
        if not arguments.get("stream"):
            whole = {"choices": [choice | {"message": {"content": "Hello"}}]}
            return SimpleNamespace(model_dump=lambda: whole)

        async def pieces() -> Any:
            for text, reason in (("Hel", None), ("lo", "stop")):
                part = {"delta": {"content": text}, "finish_reason": reason}
                data = {"choices": [choice | part]}
                yield SimpleNamespace(model_dump=lambda data=data: data)

        return pieces()


def test_litellm_is_called_with_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLiteLLM()
    monkeypatch.setitem(sys.modules, "litellm", library)
    engine = LiteLLM("gemini/x", api_key="k")
    assert talk.run(backend=engine, max_tokens=8, seed=1)["a"] == "Hello"
    call = library.calls[0]
    assert (call["model"], call["api_key"], call["drop_params"]) == ("gemini/x", "k", False)
    assert call["messages"][0] == {"role": "system", "content": "Be brief."}
    assert talk.run(backend=engine, max_tokens=8, stream=True)["b"] == "Hello"
    with pytest.raises(InvalidRequest, match="not supported"):
        talk.run(backend=engine, max_tokens=8, top_p=0.5)
    with pytest.raises(InvalidRequest, match="drop_params"):
        LiteLLM("gemini/x", drop_params=True)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(InvalidRequest, match="pip install litellm"):
        LiteLLM("gemini/x")


def test_vertex_ai_says_where_to_go() -> None:
    with pytest.raises(InvalidRequest, match="base_url"):
        VertexAI("gemini")
