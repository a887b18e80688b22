"""Answers with status 200 that are none, or not all of one, are errors; short ones that are whole are not."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from support.openai_answers import (
    CHAT,
    TEXT,
    ask,
    asked,
    backend,
    bare,
    events,
    piece,
    said,
    written,
)
from support.wire_server import WireServer

import stolon as sl
from stolon.errors import BackendError, InvalidRequest
from stolon.lang.backends.anthropic import Anthropic
from stolon.lang.backends.http import HTTPOptions, Retries
from stolon.lang.backends.litellm import LiteLLM

DIALECTS = ("openai", "compatible", "vllm", "sglang", "llama-server", "nim")
SERVER = "http://host:8000 sent"


def without(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """The answer, its choice without that field."""
    (choice,) = answer["choices"]
    return answer | {"choices": [{key: value for key, value in choice.items() if key != name}]}


def refused(path: str, answer: Any, dialect: str, **options: Any) -> str:
    """What the error says of the server."""
    program = sl.function(bare) if path in (TEXT, "/api/generate") else ask
    server = WireServer({path: answer})
    with pytest.raises(BackendError) as error:
        program.run(backend=backend(server, dialect), max_tokens=8, **options)
    assert error.value.where is not None
    assert len(server.requests) == 1
    message = error.value.message
    assert len(message) < 200
    assert message.isprintable()
    return message


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({}, "choices"),
        ({"detail": "Not Found\x1b" * 999}, "choices"),
        ({"choices": []}, "choices"),
        (said("", message=None), "a message or text in its choice"),
        (without(written("x"), "text"), "a message or text in its choice"),
        (without(said("cut he"), "finish_reason"), "a finish_reason"),
        (written("cut he", finish_reason=None), "a finish_reason"),
    ],
)
def test_what_is_no_completion_is_no_text(path: str, dialect: str, answer: Any, lacks: str) -> None:
    assert refused(path, answer, dialect) == f"{SERVER} an answer without {lacks}"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({}, "message or response"),
        (said("x"), "message or response"),
        ({"response": "cut he"}, "done: true"),
        ({"message": {"content": "cut he"}, "done": False}, "done: true"),
    ],
)
def test_nor_is_it_for_ollama(path: str, answer: Any, lacks: str) -> None:
    assert refused(path, answer, "ollama") == f"{SERVER} an answer without {lacks}"


@pytest.mark.parametrize(
    ("answer", "lacks"),
    [
        ({}, "content"),
        (said("x"), "content"),
        ({"content": [{"type": "text", "text": "cut he"}]}, "a stop_reason"),
    ],
)
def test_nor_for_claude(answer: Any, lacks: str) -> None:
    server = WireServer({"/v1/messages": answer})
    engine = Anthropic("c", api_key="k", base_url="http://host", options=server.options())
    with pytest.raises(BackendError, match=f"http://host sent an answer without {lacks}"):
        ask.run(backend=engine, max_tokens=8)


def test_nor_for_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def acompletion(**_: Any) -> Any:
        return SimpleNamespace(model_dump=lambda: {"choices": []})

    monkeypatch.setitem(sys.modules, "litellm", SimpleNamespace(acompletion=acompletion))
    with pytest.raises(BackendError, match=r"LiteLLM \(m\) sent an answer without choices"):
        ask.run(backend=LiteLLM("m"), max_tokens=8)


@pytest.mark.parametrize("dialect", ["openai", "vllm"])
def test_every_sample_must_come(dialect: str) -> None:
    (one,) = said("one")["choices"]
    lacks = refused(CHAT, {"choices": [one]}, dialect, n=3)
    assert lacks == f"{SERVER} an answer without 2 of 3 choices"
    twice = {"choices": [one, one | {"message": {"content": "two"}}]}
    for n in (1, 2):
        lacks = refused(CHAT, twice, dialect, n=n)
        assert lacks == f"{SERVER} an answer without an index of its own for each choice"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "more",
    [
        {"message": {"role": "assistant", "content": None, "reasoning_content": "So"}},
        {"message": {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}},
        {"message": {"role": "assistant"}},
        {"message": {"content": ""}, "finish_reason": "length"},
    ],
)
def test_an_empty_text_is_an_answer(dialect: str, more: dict[str, Any]) -> None:
    answer = said("", **more)
    del answer["usage"]
    state = asked(WireServer({CHAT: answer}), dialect, return_logprob=True)
    assert state["a"] == ""
    assert state.get_meta_info("a")["finish_reason"]["type"] == more.get("finish_reason", "stop")


def test_so_it_is_elsewhere() -> None:
    server = WireServer({TEXT: written(""), "/api/generate": {"response": "", "done": True}})
    for dialect in ("vllm", "ollama"):
        assert sl.function(bare).run(backend=backend(server, dialect), max_tokens=8)["a"] == ""
    server = WireServer({"/v1/messages": {"content": [], "stop_reason": "end_turn"}})
    claude = Anthropic("c", api_key="k", base_url="http://host", options=server.options())
    assert ask.run(backend=claude, max_tokens=8)["a"] == ""


TOKEN = {"token": "x", "logprob": -1.0, "bytes": [120]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("logprobs", "param"),
    [
        (None, "return_logprob"),
        ({"content": []}, "return_logprob"),
        ({"tokens": ["x"], "token_logprobs": None}, "return_logprob"),
        ({"tokens": ["x"], "token_logprobs": [None]}, "return_logprob"),
        ({"content": [TOKEN]}, "top_logprobs_num"),
    ],
)
def test_logprobs_that_were_asked_for_must_come(
    dialect: str, logprobs: Any, param: str, stream: bool
) -> None:
    more = {"finish_reason": "stop", "logprobs": logprobs}
    answer = events(piece("x", **more)) if stream else said("x", **more)
    asking = {"return_logprob": True, "top_logprobs_num": 2, "stream": stream}
    with pytest.raises(BackendError, match=SERVER) as error:
        asked(WireServer({CHAT: answer}), dialect, **asking)["a"]
    assert error.value.param == param
    assert asked(WireServer({CHAT: answer}), dialect, stream=stream)["a"] == "x"


def test_logprobs_of_ollama_must_come_too() -> None:
    answer = {"message": {"content": "x"}, "done": True}
    assert "the log-probs that" in refused("/api/chat", answer, "ollama", return_logprob=True)
    server = WireServer({"/api/chat": answer | {"logprobs": [TOKEN]}})
    meta = asked(server, "ollama", return_logprob=True).get_meta_info("a")
    assert [text for _, _, text in meta["output_token_logprobs"]] == ["x"]


@sl.function
def pick(s: sl.ProgramState) -> None:
    s += "It is" + sl.select("x", [" a", " b"])


def vllm(*logprobs: float | None) -> dict[str, Any]:
    listed = [value and {str(at): {"logprob": value}} for at, value in enumerate(logprobs)]
    return {"choices": [{"text": "", "prompt_logprobs": listed}]}


def sglang(*logprobs: float | None) -> dict[str, Any]:
    return {"meta_info": {"input_token_logprobs": [[value, 1, "a"] for value in logprobs]}}


def echo(*logprobs: float | None) -> dict[str, Any]:
    listed = {"tokens": ["t"] * 3, "token_logprobs": logprobs}
    return {"choices": [{"text": "", "logprobs": listed}]}


@pytest.mark.parametrize(
    ("dialect", "path", "answer", "lacks"),
    [
        ("vllm", TEXT, {}, "no log-probs of the prompt"),
        ("vllm", TEXT, vllm(None, -1.0, None), "a log-prob for each token of the prompt"),
        ("sglang", "/generate", {}, "meta_info"),
        ("sglang", "/generate", sglang(), "a log-prob for each token of the prompt"),
        ("sglang", "/generate", sglang(None, -1.0, None), "a log-prob for each token"),
        ("llama-cpp-python", TEXT, {}, "no log-probs of the prompt"),
        ("llama-cpp-python", TEXT, echo(None, -1.0, -1.0), "without usage"),
    ],
)
def test_a_choice_without_a_score_does_not_win(
    dialect: str, path: str, answer: Any, lacks: str
) -> None:
    with pytest.raises(BackendError, match=f"http://host:8000 .*{lacks}"):
        pick.run(backend=backend(WireServer({path: answer}), dialect))


def test_a_choice_that_is_to_be_generated_must_come() -> None:
    engine = backend(WireServer({TEXT: {}}), "vllm", select="constrained")

    @sl.function
    def greedy(s: sl.ProgramState) -> None:
        s += "It is" + sl.select("x", [" a", " b"], choices_method=sl.greedy_token_selection)

    with pytest.raises(BackendError, match=f"{SERVER} an answer without choices"):
        greedy.run(backend=engine)


@pytest.mark.parametrize("seconds", [0, 0.0, -1, float("nan"), True, "3"])
def test_times_that_can_not_be_kept_are_refused(seconds: Any) -> None:
    for name in ("read_timeout", "connect_timeout"):
        with pytest.raises(InvalidRequest, match=f"{name} must be .* more than 0") as error:
            HTTPOptions(**{name: seconds})
        assert error.value.param == name
    if seconds != 0:
        with pytest.raises(InvalidRequest, match="first_wait"):
            Retries(first_wait=seconds)
    assert HTTPOptions(read_timeout=None).read_timeout is None
