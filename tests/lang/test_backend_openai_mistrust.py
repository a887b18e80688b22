"""What a server with OpenAI's API says wrong is an error of the program; nothing is taken on trust."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from support.openai_answers import (
    CHAT,
    ask,
    asked,
    backend,
    events,
    piece,
    said,
)
from support.wire_server import Status, WireServer

import stolon as sl
from stolon.errors import (
    AccessDenied,
    BackendError,
    BackendUnavailable,
    GrammarError,
    InvalidRequest,
    Overloaded,
    ProgramError,
    StolonError,
)
from stolon.lang.backends import answers


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Status(401, {"error": {"message": "no key"}}), AccessDenied, "no key"),
        (Status(404, {"error": {"message": "no model m"}}), BackendError, "no model m"),
        (Status(400, {"error": {"message": "bad regex"}}), InvalidRequest, "bad regex"),
        (Status(429, {"error": {"message": "slow down"}}), Overloaded, "slow down"),
        (Status(503, {"detail": "loading"}), BackendUnavailable, "loading"),
        (Status(500, {"error": "x" * 9999}), BackendError, "xxx…"),
        ({"choices": [{"index": 7, "text": "x"}]}, BackendError, "not asked for"),
        ({"choices": "none"}, BackendError, "Expected `array`"),
        (said("", finish_reason="content_filter"), BackendError, "content_filter"),
        (said("", finish_reason="tool_calls"), BackendError, "tool_calls"),
        ({"error": {"message": "engine is dead"}}, BackendError, "engine is dead"),
        (
            said("", message={"content": None, "refusal": "I can't."}),
            BackendError,
            "refuses: I can't.",
        ),
    ],
)
def test_errors_of_a_server_are_errors_of_the_program(
    answer: Any, kind: type[StolonError], words: str
) -> None:
    server = WireServer({CHAT: answer})
    with pytest.raises(kind, match=words) as failed:
        asked(server)
    assert "openai_answers.py" in (failed.value.where or "")
    assert len(str(failed.value)) < 1000


def test_a_busy_server_is_asked_again() -> None:
    replies = iter([Status(429, {}), Status(503, {}), said("x")])
    server = WireServer({CHAT: lambda _: next(replies)})
    assert asked(server)["a"] == "x"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (events(piece("x"))[:1], "without saying that it is complete"),
        ([*events(piece("x"))[:1], "data: {"], "something else"),
        (events({"error": {"message": "out of memory"}}), "out of memory"),
    ],
)
def test_a_stream_that_breaks_off_is_an_error(lines: list[str], words: str) -> None:
    server = WireServer({CHAT: lines})
    state = ask.run(backend=backend(server), max_tokens=8, stream=True)
    with pytest.raises(BackendError, match=words):
        state["a"]
    assert server.streams[0].closed


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize(
    ("options", "text", "words"),
    [
        ({"schema": Person}, '{"name": "Ann"}', "'age' is a required property"),
        ({"schema": Person}, "Sure! Here it is", "not JSON"),
        ({"regex": "[0-9]+"}, "four", "nothing may follow"),
        ({"regex": "[0-9]+x"}, "44", "ends too early"),
        ({"ebnf": 'root ::= "a" | "b"'}, "c", "nothing may follow"),
    ],
)
def test_no_server_is_trusted_to_keep_to_a_constraint(
    options: dict[str, Any], text: str, words: str
) -> None:
    server = WireServer({CHAT: said(text)})

    @sl.function
    def program(s: sl.ProgramState) -> None:
        s += sl.user("Hi") + sl.assistant(sl.gen("a", **options))

    with pytest.raises(
        BackendError, match=f"http://host:8000 did not keep to the constraint.*{words}"
    ):
        program.run(backend=backend(server), max_tokens=8)


def test_a_valid_answer_may_be_spaced_and_ordered_in_any_way() -> None:
    server = WireServer({CHAT: said('{\n  "age": 3,\n  "name": "Ann"\n}')})

    @sl.function
    def program(s: sl.ProgramState) -> None:
        s += sl.user("Hi") + sl.assistant(sl.gen("a", schema=Person))

    assert program.run(backend=backend(server), max_tokens=8).value("a") == Person(
        name="Ann", age=3
    )


def test_text_cut_at_the_limit_says_so() -> None:
    server = WireServer({CHAT: said('{"name": "A', finish_reason="length")})

    @sl.function
    def program(s: sl.ProgramState) -> None:
        s += sl.user("Hi") + sl.assistant(sl.gen("a", schema=Person))

    state = program.run(backend=backend(server), max_tokens=8)
    assert state.get_meta_info("a")["finish_reason"]["type"] == "length"
    with pytest.raises(ProgramError, match="cut at max_tokens"):
        state.value("a")


def test_a_constraint_that_can_not_be_checked_is_not_sent() -> None:
    server = WireServer({CHAT: said("x")})

    @sl.function
    def program(s: sl.ProgramState, **options: Any) -> None:
        s += sl.user("Hi") + sl.assistant(sl.gen("a", **options))

    with pytest.raises(GrammarError):
        program.run(backend=backend(server), regex="(?=a)b", max_tokens=8)
    with pytest.raises(GrammarError, match="not valid"):
        program.run(backend=backend(server), schema={"type": "no"}, max_tokens=8)
    assert not server.requests


def test_a_stream_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_CHARS", 100)
    server = WireServer({CHAT: events(*[piece("x" * 9)] * 50)})
    state = ask.run(backend=backend(server), max_tokens=8, stream=True)
    with pytest.raises(BackendError, match="more than 100 characters"):
        state["a"]
    assert server.streams[0].closed
