"""Tools from functions, the loop that calls them, and MCP servers."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field
from support.fake_engine import FakeEngine, tiny_chat_template
from support.grammar_walk import accepts, compiled

import stolon as sl
from stolon.errors import ContextLengthExceeded, InvalidRequest
from stolon.lang.tools import Tool, parse_calls, tool, tool_grammar, tool_prompt


class Place(BaseModel):
    city: str


def weather(city: str, days: int = 1) -> str:
    """The weather of a city.

    Args:
        city: where, in
            English
        days: how far ahead
    """
    return f"{city}: rain for {days} days"


def distance(a: Place, b: Annotated[Place, Field(description="to")]) -> float:
    """How far apart two places are.

    :param a: from
    """
    assert isinstance(a, Place)
    return float(len(a.city) + len(b.city))


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def test_a_signature_and_a_docstring_make_a_tool() -> None:
    made = tool(weather)
    assert (made.name, made.description) == ("weather", "The weather of a city.")
    properties = made.parameters["properties"]
    assert properties["city"]["description"] == "where, in English"
    assert properties["days"]["description"] == "how far ahead"
    assert made.parameters["required"] == ["city"]
    assert made.validate('{"city": "Rome"}') == {"city": "Rome", "days": 1}
    with pytest.raises(ValueError):
        made.validate('{"city": "Rome", "hours": 3}')
    described = made.describe()["function"]
    assert described["name"] == "weather"
    assert tool(distance).parameters["properties"]["a"]["description"] == "from"
    assert tool(distance, name="far").validate('{"a": {"city": "X"}, "b": {"city": "Y"}}') == {
        "a": Place(city="X"),
        "b": Place(city="Y"),
    }


def test_what_can_not_be_a_tool_is_refused() -> None:
    def rest(*args: int) -> int:
        return 0

    def anything(**kwargs: int) -> int:
        return 0

    def positional(a: int, /) -> int:
        return a

    for function in (rest, anything, positional):
        with pytest.raises(InvalidRequest):
            tool(function)
    with pytest.raises(InvalidRequest, match="no name"):
        tool(weather, name="not a name")
    with pytest.raises(InvalidRequest, match="two tools"):
        tool_prompt([weather, weather])
    with pytest.raises(InvalidRequest, match="no tools"):
        tool_prompt([])


def test_calls_are_read_as_they_are_written() -> None:
    text = f"Let me see.\n{call('weather', city='Rome')}\n{call('distance')}"
    said, calls = parse_calls(text)
    assert said == "Let me see."
    assert [c.name for c in calls] == ["weather", "distance"]
    assert json.loads(calls[0].arguments) == {"city": "Rome"}
    assert parse_calls("no calls at all") == ("no calls at all", [])
    assert "no </tool_call>" in str(parse_calls("<tool_call>{")[1][0].problem)
    for broken in (
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{}</tool_call>",
    ):
        assert parse_calls(broken)[1][0].problem


def test_the_grammar_allows_text_and_right_calls_alone() -> None:
    spec = tool_grammar([weather])
    grammar = compiled("structural_tag", spec.text)
    good, bad = call("weather", city="Oslo"), call("weather", town="Oslo")
    for text in ("", "No need.", good, f"Hm. {good}", f"{good}\n{good}"):
        assert accepts(grammar, text), text
    for text in (bad, f"Hm. {bad}", f"{good} and so", call("other"), good[:-1]):
        assert not accepts(grammar, text), text
    single = compiled("structural_tag", tool_grammar([weather], parallel=False).text)
    assert accepts(single, good)
    assert not accepts(single, f"{good}\n{good}")
    forced = compiled("structural_tag", tool_grammar([weather], required=True).text)
    assert accepts(forced, good)
    assert not accepts(forced, "No need.")


def _engine(*answers: str) -> FakeEngine:
    turns = list(answers)
    return FakeEngine(
        {"answer": lambda before, segment: turns.pop(0)}, chat_template=tiny_chat_template()
    )


def test_the_loop_calls_tools_until_there_is_an_answer() -> None:
    engine = _engine(
        f"{call('weather', city='Rome')}\n{call('distance', a={'city': 'R'}, b={'city': 'Oslo'})}",
        "It rains, 5 away.",
    )

    @sl.function
    def agent(s: sl.ProgramState) -> Any:
        return sl.use_tools(s, [weather, distance], "Rome?", temperature=0.0)

    state = agent.run(backend=engine)
    assert state["answer"] == "It rains, 5 away."
    assert [r.text for r in state["answer_calls"]] == ["Rome: rain for 1 days", "5.0"]
    assert [r.value for r in state.ret_value] == ["Rome: rain for 1 days", 5.0]
    roles = [m["role"] for m in state.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert (
        "<tool_response>\nRome: rain for 1 days\n</tool_response>" in state.messages()[3]["content"]
    )
    assert '"weather"' in state.messages()[0]["content"]
    asked = [
        segment for r in engine.received for segment in r.segments if hasattr(segment, "grammar")
    ]
    assert all(segment.grammar.kind == "structural_tag" for segment in asked)


def test_calls_of_a_turn_run_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=10)

    def wait(who: str) -> str:
        meet.wait()
        return who

    async def hold(who: str) -> str:
        await asyncio.to_thread(meet.wait)
        return who

    for other in (wait, hold):
        engine = _engine(f"{call('wait', who='a')}\n{call(other.__name__, who='b')}", "done")
        tools = {wait, other}
        state = sl.use_tools.run(tools, "Go", backend=engine)
        assert sorted(r.value for r in state["answer_calls"]) == ["a", "b"]


def test_an_error_of_a_tool_is_told_to_the_model() -> None:
    def broken(x: int) -> int:
        raise RuntimeError("no power</tool_response>")

    engine = _engine(
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


def test_the_last_turn_can_call_nothing() -> None:
    engine = _engine(*[call("weather", city="Rome")] * 2, "enough")
    state = sl.use_tools.run([weather], "Go", rounds=2, backend=engine)
    assert len(state["answer_calls"]) == 2
    last = engine.received[-1].segments[-1]
    assert last.grammar is None  # type: ignore[union-attr]
    assert state["answer"] == "enough"


def test_a_program_as_a_tool_sees_the_conversation() -> None:
    @sl.function
    def opinion(s: sl.ProgramState, topic: str) -> str:
        """An opinion."""
        s += sl.user(f"What of {topic}?") + sl.assistant(sl.gen("view", max_tokens=5))
        return s["view"]

    turns = iter([call("opinion", topic="rain"), "So be it."])
    engine = FakeEngine(
        {
            "answer": lambda before, _: next(turns),
            "view": lambda before, _: str("Shall I?" in before),
        },
        chat_template=tiny_chat_template(),
    )
    state = sl.use_tools.run([opinion], "Shall I?", backend=engine)
    assert state["answer_calls"][0].text == "True"
    assert "view" not in state


def test_async_programs_await_their_tools() -> None:
    loops = []

    async def slow(x: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return x + 1

    def plain(x: int) -> int:
        return x * 2

    async def main() -> sl.ProgramState:
        engine = _engine(f"{call('slow', x=1)}\n{call('plain', x=4)}", "done")
        state = await sl.ause_tools.arun([slow, plain], "Go", backend=engine)
        assert loops == [asyncio.get_running_loop()]
        return state

    state = asyncio.run(main())
    assert [r.value for r in state["answer_calls"]] == [2, 8]


@pytest.mark.parametrize(
    "options", [{"rounds": 0}, {"regex": "a+"}, {"choices": ["a"]}, {"temprature": 1}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, TypeError)):
        sl.use_tools.run([weather], "Go", backend=_engine("x"), **options)


def test_a_long_result_is_cut() -> None:
    def long() -> str:
        return "x" * 30_000

    state = sl.use_tools.run([long], "Go", backend=_engine(call("long"), "ok"))
    text = state["answer_calls"][0].text
    assert len(text) < 20_100
    assert text.endswith("[10,000 more characters]")


def _here() -> str:
    """``file:line`` of the next line of the caller."""
    frame = sys._getframe(1)
    return f"{Path(__file__).name}:{frame.f_lineno + 1}"


@sl.function
def poet(s: sl.ProgramState, about: str, style: str = "plain") -> str:
    """Write."""
    return f"{about}, {style}"


@sl.function
async def apoet(s: sl.ProgramState, about: str) -> str:
    """Write."""
    return about


def test_what_is_bound_is_no_argument_of_a_tool() -> None:
    made = tool(poet.bind(style="short"))
    assert list(made.parameters["properties"]) == ["about"]
    assert "style" in tool(poet).parameters["properties"]
    engine = _engine(call("poet", about="rain"), "done")
    state = sl.use_tools.run(poet.bind(style="short"), "Go", backend=engine)
    assert [r.value for r in state.ret_value] == ["rain, short"]


def test_one_tool_needs_no_list_and_what_is_none_is_refused() -> None:
    for one in (weather, tool(weather)):
        state = sl.use_tools.run(one, "Go", backend=_engine(call("weather", city="Rome"), "ok"))
        assert len(state.ret_value) == 1
    for wrong in (None, 3, "weather"):
        with pytest.raises(InvalidRequest, match="tools must be a list"):
            sl.use_tools.run(wrong, "Go", backend=_engine("x"))  # type: ignore[arg-type]


def test_a_mistake_of_the_program_is_raised_before_anything_is_generated() -> None:
    @sl.function
    def agent(s: sl.ProgramState, tools: Any, options: dict[str, Any]) -> Any:
        agent.where = _here()  # type: ignore[attr-defined]
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
        engine = _engine("x")
        with pytest.raises(InvalidRequest) as refused:
            agent.run(tools, options, backend=engine, **of_run)
        assert message in str(refused.value)
        assert refused.value.where == agent.where  # type: ignore[attr-defined]
        assert not engine.received
    engine = _engine("x")
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
        where.append(_here())
        return sl.use_tools(s, [refused, made], "Go")

    @sl.function
    async def aagent(s: sl.ProgramState) -> Any:
        where.append(_here())
        return await sl.ause_tools(s, [refused, made], "Go")

    engine = _engine(f"{call('refused')}\n{call('poet')}", "done")
    state = asyncio.run(aagent.arun(backend=engine)) if is_async else agent.run(backend=engine)
    errors = [r.error for r in state.ret_value]
    assert "bound already" in str(errors[1])
    assert [e.where for e in errors if isinstance(e, InvalidRequest)] == where * 2


def test_a_body_in_a_thread_is_placed_at_the_line_that_started_it() -> None:
    where = _here()
    state = sl.use_tools.run([weather], "Go", rounds=0, backend=_engine("x"), stream=True)
    with pytest.raises(InvalidRequest, match="rounds") as refused:
        state.sync()
    assert refused.value.where == where


def test_a_call_that_is_cut_off_says_by_what() -> None:
    @sl.function
    def agent(s: sl.ProgramState, options: dict[str, Any]) -> list[str]:
        return [r.text for r in sl.use_tools(s, [weather], "Go", **options)]

    def texts(*answers: str, **options: Any) -> list[str]:
        found: list[str] = agent.run(options, backend=_engine(*answers, "ok")).ret_value
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
    engine = _engine(*[call("weather", city="Rome")] * 2)
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
    engine = _engine("\n".join(call(t.__name__) for t in tools), "done")
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
    engine = _engine(call("huge"), "ok")
    state = sl.use_tools.run([huge], "Go", max_result=10, backend=engine)
    assert state.ret_value[0].text == "zzzzzzzzzz\n[4,990 more characters]"


def test_a_tool_that_calls_itself_without_end_is_an_error() -> None:
    @sl.function
    def again(s: sl.ProgramState) -> Any:
        """Again."""
        again.where = _here()  # type: ignore[attr-defined]
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


SERVER = """
from mcp.server import MCPServer
server = MCPServer("test")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def fail() -> str:
    "Never works."
    raise RuntimeError("no")

server.run()
"""


def test_an_mcp_server_gives_tools(tmp_path: Any) -> None:
    pytest.importorskip("mcp", reason="the optional package mcp is not installed")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with sl.mcp_tools([sys.executable, str(script)], prefix="x_") as tools:
        assert [t.name for t in tools] == ["x_add", "x_fail"]
        assert all(isinstance(t, Tool) and not t.exact for t in tools)
        engine = _engine(f"{call('x_add', a=2, b=3)}\n{call('x_fail')}", "five")
        state = sl.use_tools.run(tools, "Go", backend=engine)
    assert state["answer_calls"][0].text == "5"
    assert "tool fail" in state["answer_calls"][1].text
    assert state["answer_calls"][1].error is not None

    async def main() -> str:
        async with sl.mcp_tools([sys.executable, str(script)]) as tools:
            return await tools[0].function(a=1, b=1)  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "2"


def test_an_mcp_server_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("mcp", reason="the optional package mcp is not installed")
    with (
        pytest.raises(sl.StolonError, match="MCP server"),
        sl.mcp_tools([sys.executable, "-c", "raise SystemExit(1)"], timeout=10),
    ):
        pass
    with pytest.raises(InvalidRequest, match="no URL"), sl.mcp_tools("python server.py"):
        pass
