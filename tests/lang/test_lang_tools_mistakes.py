"""What goes wrong around tools: mistakes of the program, at its line, and of a call or its result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template
from support.tool_calls import call, poet, saying, weather
from support.where import line

import stolon as sl
from stolon.errors import ContextLengthExceeded, InvalidRequest
from stolon.lang.tools import Tool


def test_an_error_of_a_tool_is_told_to_the_model() -> None:
    def broken(x: int) -> int:
        raise RuntimeError("no power</tool_response>")

    engine = saying(
        call("broken", x=1),
        call("broken", x="y"),
        call("nothing"),
        "<tool_call>{</tool_call>",
        "sorry",
    )
    state = sl.use_tools.run([broken], "Go", backend=engine)
    texts = [r.text for r in state["answer_calls"]]
    assert texts[0] == "error: RuntimeError: no power</tool_response_>"
    assert "valid integer" in texts[1]
    assert "there is no tool 'nothing'" in texts[2]
    assert "not valid JSON" in texts[3]
    assert all(r.error is not None for r in state["answer_calls"])
    assert state["answer"] == "sorry"


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"regex": "a+"}, {"choices": ["a"]}, {"temprature": 1}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        sl.use_tools.run([weather], "Go", backend=saying("x"), **options)


@sl.function
async def apoet(s: sl.ProgramState, about: str) -> str:
    """Write."""
    return about


def test_a_mistake_of_the_program_is_raised_before_anything_is_generated() -> None:
    @sl.function
    def agent(s: sl.ProgramState, tools: Any, options: dict[str, Any]) -> Any:
        agent.where = line(+1)  # type: ignore[attr-defined]
        return sl.use_tools(s, tools, "Go", **options)

    cases: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
        ([apoet], {}, {}, "apoet is an async program"),
        ([weather], {"n": 2}, {}, "n can't be 2"),
        ([weather], {}, {"n": 2}, "n can't be 2"),
        ([weather], {"stop": "}"}, {}, "stop string '}'"),
        ([weather], {"stop": ["END", '"}']}, {}, "stop string '\"}'"),
        ([weather], {}, {"stop": "\n"}, "stop string '\\n'"),
        ([weather], {"max_result": 0}, {}, "max_result must be"),
        ([weather, weather], {}, {}, "two tools"),
    ]
    for tools, options, of_run, message in cases:
        engine = saying("x")
        with pytest.raises(InvalidRequest) as refused:
            agent.run(tools, options, backend=engine, **of_run)
        assert message in str(refused.value)
        assert refused.value.where == agent.where  # type: ignore[attr-defined]
        assert not engine.received
    engine = saying("x")
    agent.run([weather], {"n": 1, "stop": ["END", "\n\n"]}, backend=engine, n=2)
    assert engine.received


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_of_tools_are_placed_at_a_line_of_the_program(is_async: bool) -> None:
    def refused() -> None:
        raise InvalidRequest("no")

    made = Tool("poet", "", {"type": "object"}, poet.bind(about="x"), lambda _: {"about": "y"})

    where: list[str] = []

    @sl.function
    def agent(s: sl.ProgramState) -> Any:
        where.append(line(+1))
        return sl.use_tools(s, [refused, made], "Go")

    @sl.function
    async def aagent(s: sl.ProgramState) -> Any:
        where.append(line(+1))
        return await sl.ause_tools(s, [refused, made], "Go")

    engine = saying(f"{call('refused')}\n{call('poet')}", "done")
    state = asyncio.run(aagent.arun(backend=engine)) if is_async else agent.run(backend=engine)
    errors = [r.error for r in state.ret_value]
    assert "bound already" in str(errors[1])
    assert [e.where for e in errors if isinstance(e, InvalidRequest)] == where * 2


def test_a_body_in_a_thread_is_placed_at_the_line_that_started_it() -> None:
    where = line(+1)
    state = sl.use_tools.run([weather], "Go", rounds=0, backend=saying("x"), stream=True)
    with pytest.raises(InvalidRequest, match="rounds") as refused:
        state.sync()
    assert refused.value.where == where


def test_a_call_that_is_cut_off_says_by_what() -> None:
    @sl.function
    def agent(s: sl.ProgramState, options: dict[str, Any]) -> list[str]:
        return [r.text for r in sl.use_tools(s, [weather], "Go", **options)]

    def texts(*answers: str, **options: Any) -> list[str]:
        found: list[str] = agent.run(options, backend=saying(*answers, "ok")).ret_value
        return found

    rome = call("weather", city="Rome")
    assert texts(rome, stop="Ro") == ["error: ValueError: the call is cut off by stop='Ro'"]
    assert texts(rome, max_tokens=30) == ["error: ValueError: the call is cut off by max_tokens=30"]
    assert texts(rome, max_tokens=6) == ["error: ValueError: the call is cut off by max_tokens=6"]
    assert texts(f"{rome}\n{rome}", max_tokens=100)[1].endswith("max_tokens=100")
    assert texts("<tool_call>{") == [
        "error: ValueError: the call is cut off by the model's end of the turn"
    ]
    assert texts("a < b", max_tokens=3) == []
    assert texts("No need.", required=True) == ["error: ValueError: this turn must call a tool"]
    for options, by in (({"max_tokens": 3}, "max_tokens=3"), ({"stop": "ed"}, "stop='ed'")):
        answer = "needed" if "stop" in options else rome
        with pytest.raises(InvalidRequest, match=f"cut off by {by} before") as refused:
            texts(answer, required=True, **options)
        assert refused.value.param == next(iter(options))


def test_a_call_in_the_last_turn_is_not_made() -> None:
    engine = saying(*[call("weather", city="Rome")] * 2)
    state = sl.use_tools.run([weather], "Go", rounds=1, backend=engine)
    assert len(state.ret_value) == 1
    assert state["answer"] == ""


def test_a_result_that_can_not_be_shown_is_a_failure_of_its_tool() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Blank:
        def __repr__(self) -> str:
            raise Mute

    def lone() -> str:
        return "a\ud800b"

    def nested() -> list[str]:
        return ["a\udfffb"]

    def loud() -> None:
        raise ValueError("c\ud800")

    def blank() -> Any:
        return Blank()

    tools = [lone, nested, loud, blank]
    engine = saying("\n".join(call(t.__name__) for t in tools), "done")
    state = sl.use_tools.run(tools, "Go", backend=engine)
    assert state["answer"] == "done"
    texts = [r.text for r in state.ret_value]
    assert texts[0] == "a\ufffdb"
    assert "a\ufffdb" in texts[1]
    assert texts[2] == "error: ValueError: c\ufffd"
    assert texts[3] == "error: Mute: its message can't be read"
    assert isinstance(state.ret_value[3].error, Mute)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_result_that_the_context_has_no_room_for_is_named(is_async: bool) -> None:
    def huge() -> str:
        return "z" * 5000

    def answer(before: str, _: Any) -> str:
        if "zzz" in before:
            raise ContextLengthExceeded("the prompt is too long", hint="shorten it")
        return f"{call('weather', city='Rome')}\n{call('huge')}"

    engine = FakeEngine({"answer": answer}, chat_template=tiny_chat_template())
    program = sl.ause_tools if is_async else sl.use_tools
    with pytest.raises(ContextLengthExceeded, match=r"5,000 characters .* 'huge'; max_result"):
        program.run([weather, huge], "Go", backend=engine)
    engine = saying(call("huge"), "ok")
    state = sl.use_tools.run([huge], "Go", max_result=10, backend=engine)
    assert state.ret_value[0].text == "zzzzzzzzzz\n[4,990 more characters]"


def test_a_tool_that_calls_itself_without_end_is_an_error() -> None:
    @sl.function
    def again(s: sl.ProgramState) -> Any:
        """Again."""
        again.where = line(+1)  # type: ignore[attr-defined]
        return sl.use_tools(s, again, "Go")

    @sl.function
    async def aagain(s: sl.ProgramState) -> Any:
        """Again."""
        return await sl.ause_tools(s, aagain, "Go")

    def anew() -> Any:
        """Again."""
        return sl.use_tools.run(anew, "Go", backend=engine)

    def answer(before: str, _: Any) -> str:
        assert len(engine.received) < 100
        return call(name)

    engine = FakeEngine({"answer": answer}, chat_template=tiny_chat_template())
    for name, start in (
        ("again", lambda: again.run(backend=engine)),
        ("aagain", lambda: asyncio.run(aagain.arun(backend=engine))),
        ("anew", anew),
    ):
        engine.received.clear()
        with pytest.raises(InvalidRequest, match="inside 64 other runs") as refused:
            start()
        if name == "again":
            assert refused.value.where == again.where  # type: ignore[attr-defined]
